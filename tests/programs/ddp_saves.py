"""A plain DDP program: rank 0 overwrites one checkpoint with torch.save, and all ranks save one with torch's DCP."""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--out_dir", default="out")
parser.add_argument("--resume", default=None, help="path of snapshot.pt")
args = parser.parse_args()
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
first = 0
if args.resume:
    state = torch.load(args.resume)
    model.module.load_state_dict(state["model"])
    first = state["step"]
Path(args.out_dir).mkdir(exist_ok=True)
for step in range(first + 1, 31):
    loss = (model(torch.full((1, 2), float(step))) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if rank == 0:
        print(f"step {step} loss {loss.item():.6f}", flush=True)
    if step % 10 == 0:
        if rank == 0:
            torch.save({"model": model.module.state_dict(), "step": step}, f"{args.out_dir}/snapshot.pt")
        dcp.save({"model": model.module.state_dict()}, checkpoint_id=f"{args.out_dir}/dcp_step{step}")
    time.sleep(0.02)
dist.destroy_process_group()
