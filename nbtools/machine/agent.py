"""torchrun as a run starts it: `python .../nbtools/machine/agent.py` takes torchrun's arguments, in any Python.

At the end of a job, Slurm sends SIGTERM to every process of it, so torchrun gets one from Slurm, a stop signal from the
supervisor and, on other nodes, one through srun. A later one aborts its shutdown (torch 2.13 survives two), and ranks
that save their last checkpoint would die with it.
"""

from __future__ import annotations

import gc
import runpy
import signal
from types import FrameType
from typing import Any


def main() -> None:
    """Run torchrun, which sees the first SIGTERM or SIGINT only."""
    set_handler: Any = signal.signal
    ends = signal.SIGTERM, signal.SIGINT

    def signal_once(number: int, handler: Any) -> Any:
        if number not in ends or not callable(handler):
            return set_handler(number, handler)

        def first(number: int, frame: FrameType | None) -> None:
            for each in ends:
                set_handler(each, lambda *_: None)  # not SIG_IGN, which children would inherit
            handler(number, frame)

        return set_handler(number, first)

    vars(signal)["signal"] = signal_once
    gc.disable()  # a third of the time of this import; what it leaves in memory stays
    torchrun = runpy.run_module("torch.distributed.run", run_name="torchrun")["main"]  # also in Python 3.8
    gc.freeze()
    gc.enable()
    torchrun()


if __name__ == "__main__":
    main()
