"""A rank that hangs in `hang_here`: `hangs.py announce|silent|deaf`.

`announce` writes its Python stacks on SIGUSR2 and says so in its heartbeat; `silent` says nothing, so that the signal
would be its death; `deaf` announces the signal and ignores it.
"""

import faulthandler
import os
import signal
import sys
import threading
import time

from nbtools.rundir.json_files import write_json
from nbtools.rundir.process_identity import ProcessIdentity
from nbtools.rundir.rundir import RunDir


def hang_here() -> None:
    while True:
        time.sleep(600)


def beside_it() -> None:
    while True:
        time.sleep(600)


how, rank = sys.argv[1], int(os.environ.get("RANK", "0"))
run = RunDir(os.environ["NBTOOLS_RUN_DIR"])
threading.Thread(target=beside_it, daemon=True).start()
if how == "deaf":
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
if how == "announce":
    faulthandler.register(signal.SIGUSR2, file=run.stacks(rank).open("a"), all_threads=True, chain=False)
if how != "silent":
    place = {"rank": rank, "step": 40, "phase": "backward", "time": time.time() - 60, "nth": 3 - rank}
    write_json(
        run.heartbeat(rank),
        {**place, **ProcessIdentity.of(os.getpid()).to_json(), "stacks_signal": int(signal.SIGUSR2)},
    )
(run.ranks / f"{rank}.ready").touch()
hang_here()
