"""A limit of the size of files, for tests of full disks."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    """Let every write beyond so many bytes of a file fail, as on a full disk; not for long, as pytest writes too."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
