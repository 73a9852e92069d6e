"""Test whether other machines see a folder, by the type of its file system."""

import re
from pathlib import Path

_LOCAL = re.compile(r"(dev)?tmpfs|ramfs|rootfs|ext[234]|xfs|btrfs|zfs|overlay|f2fs|jfs|reiserfs|v?fat|exfat|ntfs3?")
_MOUNTS = Path("/proc/mounts")


def local_disk(folder: Path, mounts: str | None = None) -> str | None:
    """Return the type and mount point of the local file system that a folder is on, such as `ext4 at /home`.

    None if other machines may see the folder: NFS, Lustre, GPFS, BeeGFS, Ceph, FUSE and all other types; and where the
    system does not tell.

    Args:
        folder: a path whose last parts need not exist.
        mounts: content of /proc/mounts, which is read by default.
    """
    if mounts is None:
        try:
            mounts = _MOUNTS.read_text(errors="surrogateescape")
        except OSError:
            return None
    real, found = folder.resolve(), ("", "")
    for line in mounts.splitlines():
        _, point, kind, *_ = [*line.split(" "), "", "", ""]
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point)
        if len(point) >= len(found[0]) and point and real.is_relative_to(point):  # a later mount hides an earlier one
            found = point, kind
    return f"{found[1]} at {found[0]}" if _LOCAL.fullmatch(found[1]) else None
