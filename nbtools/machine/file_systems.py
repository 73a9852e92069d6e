"""Test whether other machines see a folder, by the type of its file system."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

_LOCAL = re.compile(r"(dev)?tmpfs|ramfs|rootfs|ext[234]|xfs|btrfs|zfs|overlay|f2fs|jfs|reiserfs|v?fat|exfat|ntfs3?")


def local_disk(folder: Path, mounts: Sequence[Any] | None = None) -> str | None:
    """Return the type and mount point of the local file system that a folder is on, such as `ext4 at /home`.

    None if other machines may see the folder: NFS, Lustre, GPFS, BeeGFS, Ceph, FUSE and all other types.

    Args:
        folder: a path whose last parts need not exist.
        mounts: what psutil says of all file systems, which is asked by default.
    """
    real, every = folder.resolve(), psutil.disk_partitions(all=True) if mounts is None else mounts
    under = [mount for mount in every if real.is_relative_to(mount.mountpoint)]
    under.sort(key=lambda mount: len(mount.mountpoint))  # a later mount hides an earlier one
    return f"{under[-1].fstype} at {under[-1].mountpoint}" if under and _LOCAL.fullmatch(under[-1].fstype) else None
