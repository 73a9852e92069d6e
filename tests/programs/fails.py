"""Fails in the way that its argument names: raise, exit or kill."""

import os
import signal
import sys

match sys.argv[1]:
    case "raise":
        raise ValueError("boom <b>&")
    case "exit":
        print("cannot go on: no data", flush=True)
        sys.exit(7)
    case "kill":
        os.kill(os.getpid(), signal.SIGKILL)
