"""Ends at once and leaves a daemon behind, in a session of its own: `forks_daemon.py PID_FILE [--wipe]`.

With `--wipe` the daemon's environment no longer tells to which run it belongs.
"""

import os
import subprocess
import sys
from pathlib import Path

daemon = subprocess.Popen(
    [sys.executable, "-c", "import time; time.sleep(600)"],
    env={} if "--wipe" in sys.argv else dict(os.environ),
    start_new_session=True,
)
Path(sys.argv[1]).write_text(str(daemon.pid))
daemon.returncode = 0  # not waited for on purpose
