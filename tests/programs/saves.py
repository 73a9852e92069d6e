"""A program without torch that prints its loss, saves what torch.save writes (a zip archive) and resumes from it."""

import argparse
import sys
import time
import zipfile
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--out-dir", default="out")
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--every", type=int, default=10)
parser.add_argument("--pause", type=float, default=0.02)
parser.add_argument("--name", default="ckpt_step{}.pt")
parser.add_argument("--fail-at", type=int, default=-1)
parser.add_argument("--count-anew", action="store_true")
parser.add_argument("--lr", default="1")
parser.add_argument("--resume")
args = parser.parse_args()
out = Path(args.out_dir)
out.mkdir(parents=True, exist_ok=True)
first, resume = 0, args.resume
if resume:
    with zipfile.ZipFile(resume) as archive:
        first = int(archive.read("step"))
    print("resumed", resume, flush=True)
for step in range(first + 1, args.steps + 1):
    time.sleep(args.pause)
    shown = step - first if args.count_anew else step
    print(f"step {shown} loss {1000 - step}.0 lr {args.lr}", flush=True)
    if step % args.every == 0:
        with zipfile.ZipFile(out / args.name.format(step), "w") as archive:
            archive.writestr("step", str(step))
    if step == args.fail_at and not resume:
        sys.exit("out of luck")
