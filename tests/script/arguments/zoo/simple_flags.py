"""Constants and computed defaults of every kind."""

import argparse
import os
import socket

HERE = os.path.dirname(__file__)
BASE = 1e-3
STEPS = 10 * 1000
SIZES = [8, 16]
NAME = f"run_{STEPS}"

p = argparse.ArgumentParser(argument_default=None)
p.add_argument("--lr", type=float, default=BASE * 2)
p.add_argument("--size", type=int, choices=SIZES, default=SIZES[-1])
p.add_argument("--name", default=NAME)
p.add_argument("--host", default=socket.gethostname())
p.add_argument("--cache", default=os.environ.get("CACHE_DIR", "cache"))
p.add_argument("--ratio", type=lambda x: float(x), default="0.5")
p.add_argument("--amp", type=lambda x: x.lower() == "true", default=False)
p.add_argument("--warm", type=lambda x: str(x).lower() in ["true", "1", "yes"], default=True, nargs="?", const=True)
p.add_argument("--password", default="")
args = p.parse_args()
open(os.environ["ZOO_MARK"], "w").close()
