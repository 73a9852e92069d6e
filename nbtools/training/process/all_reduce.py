"""One collective as a check that the processes of this machine reach each other.

torchrun --standalone --nproc-per-node=2 -m nbtools.training.process.all_reduce [gloo|nccl]
"""

import sys
import time

import torch
import torch.distributed as dist


def _main(backend: str = "gloo") -> None:
    """Sum 1, 2, …, world size over all ranks and check the result; rank 0 prints how long it took."""
    dist.init_process_group(backend)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if backend == "nccl" else torch.device("cpu")
    total = torch.full((1024,), float(rank + 1), device=device)
    began = time.perf_counter()
    dist.all_reduce(total)
    expected = world_size * (world_size + 1) / 2
    if not torch.all(total == expected):
        raise RuntimeError(f"{backend}: the sum over {world_size} ranks is {total[0].item()} instead of {expected}")
    if rank == 0:
        print(f"{backend}: {world_size} ranks agree, {1000 * (time.perf_counter() - began):.0f} ms", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    _main(*sys.argv[1:])
