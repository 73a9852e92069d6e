"""A plain DDP program that knows nothing of nbtools: torchrun --nproc-per-node=2 train_digits.py --epochs 4."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

ROWS = ("75557", "26227", "71747", "71717", "55711", "74717", "74757", "71222", "75757", "75717")
GLYPHS = torch.tensor([[[int(row) >> shift & 1 for shift in (2, 1, 0)] for row in digit] for digit in ROWS]).float()


def make_digits(count: int, seed: int, noise: float) -> tuple[Tensor, Tensor]:
    """Draw digits of 3 x 5 pixels at random places of 8 x 8 noisy ones."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    images = noise * torch.randn(count, 8, 8, generator=generator)
    places = torch.stack([torch.randint(limit, (count,), generator=generator) for limit in (4, 6)], 1)
    for image, label, (top, left) in zip(images, labels, places.tolist(), strict=True):
        image[top : top + 5, left : left + 3] += GLYPHS[label]
    return images, labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12, help="epochs of 100 steps")
    parser.add_argument("--batch-size", type=int, default=64, help="images per process")
    parser.add_argument("--lr", type=float, default=1e-2, help="largest learning rate")
    parser.add_argument("--noise", type=float, default=0.25, help="standard deviation of the noise")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the checkpoints")
    parser.add_argument("--resume", type=Path, help="checkpoint to continue from")
    args = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 64), nn.ReLU(), nn.Linear(64, 10))
    model = DistributedDataParallel(net.to(device))
    optimizer = torch.optim.AdamW(model.parameters(), args.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100 * args.epochs)
    state = {"model": net, "optimizer": optimizer, "schedule": schedule}
    start = 0
    if args.resume:
        saved = torch.load(args.resume, map_location=device, weights_only=True)
        start = saved["epoch"]
        for name, part in state.items():
            part.load_state_dict(saved[name])
    args.out.mkdir(parents=True, exist_ok=True)
    held_out = [part.to(device) for part in make_digits(1000, 0, args.noise)]
    for epoch in range(start + 1, args.epochs + 1):
        images, labels = make_digits(100 * args.batch_size, epoch * world + rank + 1, args.noise)
        for step, (x, y) in enumerate(
            zip(images.split(args.batch_size), labels.split(args.batch_size), strict=True), 1
        ):
            loss = nn.functional.cross_entropy(model(x[:, None].to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if step % 20 == 0 and rank == 0:
                done = 100 * (epoch - 1) + step
                print(f"step {done}/{100 * args.epochs} loss {loss:.4f} lr {schedule.get_last_lr()[0]:.2e}", flush=True)
        if rank == 0:
            with torch.no_grad():
                scores = net(held_out[0][:, None])
            loss = nn.functional.cross_entropy(scores, held_out[1])
            accuracy = (scores.argmax(1) == held_out[1]).float().mean()
            told = f"epoch {epoch}/{args.epochs} step {100 * epoch}"
            print(f"{told} val loss {loss:.4f} val accuracy {accuracy:.4f}", flush=True)
            right = [(scores.argmax(1)[held_out[1] == digit] == digit).float().mean() for digit in range(10)]
            print("recall", *(f"{digit}={share:.2f}" for digit, share in enumerate(right)), flush=True)
            content = {"epoch": epoch, **{name: part.state_dict() for name, part in state.items()}}
            torch.save(content, args.out / f"epoch-{epoch:03}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
