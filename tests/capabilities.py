"""What some tests need of the machine, and whether it is there: `@pytest.mark.needs("mount")` skips them elsewhere.

CI (NBTOOLS_NO_SKIP) allows these skips and those of tests marked `gpu`, lists them at its end, and fails on any other.
Packages are no capability of a machine: CI installs all of them, so a test that needs one fails there without it.
"""

import functools
import importlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from slurm_cluster import is_installed as slurm_is_installed

ANOTHER_UID = 65_534


def _succeeds(*command: str, user: int | None = None) -> bool:
    try:
        return subprocess.run(command, user=user, capture_output=True, timeout=300, check=False).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def _mounts() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        return _succeeds("unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", folder)


def _has_ext4() -> bool:
    mounted = (line.split() for line in Path("/proc/filesystems").read_text().splitlines())
    has_loop = Path("/dev/loop-control").exists() and Path("/sys/fs/ext4/features").exists()
    return has_loop and ["ext4"] in mounted and bool(shutil.which("mkfs.ext4"))


def _has_exfat() -> bool:
    programs = all(map(shutil.which, ("mkfs.exfat", "mount.exfat-fuse", "losetup")))
    return programs and Path("/dev/fuse").exists() and Path("/dev/loop-control").exists()


def _becomes_another_user() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        gives_files = _succeeds("chown", str(ANOTHER_UID), folder)
    return gives_files and _succeeds(shutil.which("true") or "true", user=ANOTHER_UID)


def _has_network_namespaces() -> bool:
    return _succeeds("unshare", "--net", "ip", "link", "add", "nbtools0", "type", "veth", "peer", "name", "nbtools1")


CAPABILITIES: dict[str, tuple[Callable[[], bool], str]] = {
    "another user": (_becomes_another_user, "files and processes of a second user (root)"),
    "ensurepip": (lambda: bool(find_spec("ensurepip")), "pip for new environments (python3-venv)"),
    "exfat": (_has_exfat, "exFAT on a loop device (root, /dev/fuse; exfat-fuse, exfatprogs)"),
    "ext4": (_has_ext4, "ext4 on a loop device, and mkfs.ext4"),
    "mount": (_mounts, "a mount namespace, to mount small file systems in (root)"),
    "network namespaces": (_has_network_namespaces, "network namespaces joined by a cable (root, and ip of iproute2)"),
    "slurm": (slurm_is_installed, "Slurm and MUNGE, whose daemons the tests start (root)"),
}
"""By name: a probe, which runs at most once and only if a collected test needs it, and what the machine must offer."""

NO_SKIP = bool(os.environ.get("NBTOOLS_NO_SKIP"))
PACKAGES = ("fire", "hydra", "jsonargparse", "lightning", "rich", "wandb")
"""Packages of the extras `zoo` and `dev` that some tests need."""


def require(package: str) -> Any:
    """Import a package of `PACKAGES`; skip the test without it, or fail in CI."""
    return importlib.import_module(package) if NO_SKIP else pytest.importorskip(package)


@functools.cache
def has(name: str) -> bool:
    """Whether the machine has the capability; a package counts as there where it must be."""
    return NO_SKIP or bool(find_spec(name)) if name in PACKAGES else CAPABILITIES[name][0]()


def lacking(item: pytest.Item) -> list[str]:
    """Return the names of what a test needs and the machine lacks.

    Raises:
        pytest.UsageError: the test names a capability that is not in CAPABILITIES.
    """
    needed = [name for marker in item.iter_markers("needs") for name in marker.args]
    if unknown := sorted(set(needed) - {*CAPABILITIES, *PACKAGES}):
        raise pytest.UsageError(f"{item.nodeid}: needs {unknown}; allowed: {', '.join([*CAPABILITIES, *PACKAGES])}")
    return [name for name in needed if not has(name)]


def skip_what_is_lacking(items: Iterable[pytest.Item]) -> None:
    """Skip each test for which the machine lacks something."""
    for item in items:
        if names := lacking(item):
            told = {name: f"needs {name}: a package of the extras zoo and dev" for name in PACKAGES}
            told |= {name: f"needs {name}: {what}" for name, (_, what) in CAPABILITIES.items()}
            reason = "; ".join(told[name] for name in names)
            item.add_marker(pytest.mark.skip(reason=reason))


def listed(reports: Iterable[pytest.TestReport]) -> str:
    """Return a paragraph per reason with the tests that were skipped for it, by file; parameters are left out."""
    found: dict[str, dict[str, dict[str, None]]] = {}
    for report in reports:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        file, _, name = report.nodeid.partition("::")
        found.setdefault(reason.removeprefix("Skipped: "), {}).setdefault(file, {})[name.partition("[")[0]] = None
    return "".join(
        f"skipped: {reason}\n" + "".join(f"  {file}: {', '.join(names)}\n" for file, names in files.items())
        for reason, files in sorted(found.items())
    )
