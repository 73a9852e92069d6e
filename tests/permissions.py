"""The command line of nbtools in a process that obeys the permissions of files, even as root."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

_PR_CAPBSET_DROP = 24
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH, _CAP_FOWNER = 1, 2, 3


def obey_permissions() -> None:
    """Let the program that is started next obey the rights of files, even as root."""
    if os.geteuid() == 0:
        for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH, _CAP_FOWNER):
            if ctypes.CDLL(None, use_errno=True).prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0):
                raise OSError(ctypes.get_errno(), "cannot drop a capability")


def nbtools(*words: str | Path, env: dict[str, str], code: int | None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "nbtools", *map(str, words)],
        env=env,
        preexec_fn=obey_permissions,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert code is None or done.returncode == code, (words, done.stdout, done.stderr)
    return done
