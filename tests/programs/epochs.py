"""A program without torch whose steps start over in each epoch; it saves at the end of each, and resumes from there."""

import argparse
import time
import zipfile
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--out_dir", default="ckpts")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--pause", type=float, default=0.01)
parser.add_argument("--name", default="ckpt_{}.pt")
parser.add_argument("--lr", default="1")
parser.add_argument("--resume")
args = parser.parse_args()
out, first = Path(args.out_dir), 0
out.mkdir(exist_ok=True)
if args.resume:
    with zipfile.ZipFile(args.resume) as archive:
        first = int(archive.read("epoch")) + 1
for epoch in range(first, args.epochs):
    for i in range(8):
        time.sleep(args.pause)
        if i % 2 == 0:
            print(f"epoch {epoch} | step {i}/8 | loss {1000 - 8 * epoch - i}.0", flush=True)
    with zipfile.ZipFile(out / args.name.format(epoch), "w") as archive:
        archive.writestr("epoch", str(epoch))
