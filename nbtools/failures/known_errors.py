"""Known errors and signals, each with its cause and the setting to change.

Extend the tables freely. Whether the kernel sent a SIGKILL for lack of memory is decided by the memory in use before
it and by the kernel's count of such kills.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from nbtools.errors import plural
from nbtools.rundir.json_files import whole


@dataclass(frozen=True)
class Cause:
    """A known error."""

    pattern: str
    """Regular expression for the message of torch, Python or the kernel."""
    words: str
    advice: str
    """The setting to change; {cwd} and {python} stand for the run's working directory and interpreter."""
    is_often_handled: bool = False
    """Whether programs often handle this error; once handled, it is not the cause of a later exception."""


_SHARED_MEMORY = "Lower num_workers, or give the container more shared memory (docker run --shm-size=8g or --ipc=host)."
LESS_MEMORY = (
    "Lower batch_size or num_workers, or keep less of the dataset in memory: every rank and every DataLoader worker "
    "holds its own."
)

TIMEOUT = Cause(
    r"Timed out waiting \d+ms|Watchdog caught collective operation timeout|wait timeout after \d+ms"
    r"|Application timeout caused pair closure",
    "waited too long for another rank",
    "Look at the rank that was waited for: while one hangs, nbtools show RUN --stacks shows where. If it is only slow, "
    "raise collective_timeout_min (in a script of your own: init_process_group's timeout).",
)
NOT_JOINED = Cause(
    r"waiting for clients|clients joined|The client socket has timed out",
    "the rendezvous of the run's machines failed",
    "Run the command of each further machine (nbtools show RUN says it) within an hour. If all of them ran, they do "
    "not reach the first one: let its port through the firewall, or set MASTER_ADDR and MASTER_PORT at the launch.",
)
NO_GUARD = Cause(
    r"An attempt has been made to start a new process before|freeze_support\(\)",
    'the script has no if __name__ == "__main__":, and a process that it started ran the script again',
    'Put what the script does, all but imports, functions and classes, below the line if __name__ == "__main__":. '
    "Spawned processes, such as those of a DataLoader, import the script.",
)
LOADER_WORKER_DIED = Cause(
    r"DataLoader worker \(pid.*(?:is killed by signal|exited unexpectedly)",
    "a DataLoader worker died",
    f"Usually memory ran out. {LESS_MEMORY} With num_workers=0 an error of the dataset itself is shown.",
)
GPU_MEMORY = Cause(
    r"CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError|CUDA error: out of memory|_STATUS_ALLOC_FAILED"
    r"|Cuda failure (?:\d+ )?'out of memory'",
    "the GPU ran out of memory",
    "Lower batch_size and raise gradient_accumulation_steps by the same factor, which trains the same; "
    "precision='bf16' or gradient checkpointing in the model save more. If much is reserved but unallocated, set "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
)
SHARED_MEMORY = Cause(
    r"signal: Bus error|nexpected bus error|(?:out of|insufficient) shared memory|shared memory(?: object|\(shm\))"
    r"|No space left on device: '?/dev/shm|</torch_\d[^>]*>.*No space left",
    "shared memory (/dev/shm) ran out",
    _SHARED_MEMORY,
)
DISK_FULL = Cause(
    r"No space left on device",
    "the disk is full",
    "Free some of it (nbtools clean), or lower keep_last and raise checkpoint_every: checkpoints take most of it.",
)
FILE_MISSING = Cause(
    r"No such file or directory: '[^/'\n][^'\n]*'",
    "a file is missing",
    "Its path is relative to the working directory, {cwd}: launch from the folder that has it, or give the whole "
    "path (in a launcher script, cwd of Program). If it is a program, PATH has to name its folder.",
    is_often_handled=True,
)
MODULE_MISSING = Cause(
    r"ModuleNotFoundError: No module named",
    "a package is missing",
    "The program runs in {python}: install it there, or name another environment (python=, --python). For a module "
    "of your own, launch from the folder above it with -m, or set PYTHONPATH.",
    is_often_handled=True,
)
RANK_LOST = Cause(
    r"Connection closed by peer|gloo.*(?:Connection reset by peer|Broken pipe)|ncclRemoteError"
    r"|remote process exited or there was a network error|Connection closed by remote peer"
    r"|communicator was aborted|recv, got 0 bytes|[Dd]id the remote server shutdown",
    "another rank was lost",
    "This rank only noticed it: look at the one that ended first; its output is in the run's ranks folder.",
)
LEFT_FIRST = (
    "All ranks must call each collective equally often: give them the same number of batches (drop_last=True in the "
    "sampler), or use torch.distributed.algorithms.join.Join for uneven ones."
)
"""Advice where a rank has ended in order while others waited for it."""
CAUSES = (
    NO_GUARD,
    GPU_MEMORY,
    Cause(
        r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|MemoryError|std::bad_alloc|Cannot allocate memory",
        "the process could get no more memory",
        "The host's memory is used up, or a limit of the process (ulimit -v). " + LESS_MEMORY,
    ),
    Cause(r"Too many open files|items of ancdata", "too many files are open", "Raise ulimit -n, or lower num_workers."),
    SHARED_MEMORY,
    DISK_FULL,
    Cause(r"Disk quota exceeded", "the disk quota is used up", "Remove some files (nbtools clean); see quota -s."),
    Cause(r"File too large", "the limit of file size was reached", "Raise it (ulimit -f); the disk is not full."),
    Cause(
        r"requested and \d+ written|inline_container\.cc:\d+\] \. (?:unexpected pos|.*write failed)",
        "a file could not be written whole",
        "The disk, its quota or the limit of file size was reached: see df, quota -s and ulimit -f.",
    ),
    Cause(r"Read-only file system", "the file system is read-only", "Write elsewhere; after a disk error, see dmesg."),
    LOADER_WORKER_DIED,
    Cause(
        r"Caught \w+ in DataLoader worker process \d+",
        "raised in a DataLoader worker",
        "The error is in the dataset or the collate function; num_workers=0 runs them in the rank itself, where a "
        "debugger reaches them.",
    ),
    NOT_JOINED,
    TIMEOUT,
    Cause(
        r"device-side assert",
        "an index was out of range on the GPU (device-side assert)",
        "Usually a token id or a label that the model has no row for. CUDA reports it late: run once with "
        "CUDA_LAUNCH_BLOCKING=1, or on the CPU, to see the line.",
    ),
    Cause(
        r"no kernel image is available",
        "this build of torch has no code for this GPU",
        "Install a torch built for the GPU's compute capability; nbtools doctor shows both.",
    ),
    Cause(
        r"Torch not compiled with CUDA enabled|No CUDA GPUs are available|Found no NVIDIA driver"
        r"|torch\.cuda\.is_available\(\) is False",
        "a GPU is requested, and the processes have none",
        "Give the run GPUs (gpus=None takes all of them), or choose the CPU in the program, such as "
        "torch.device('cuda' if torch.cuda.is_available() else 'cpu'); nbtools doctor shows both.",
    ),
    Cause(
        r"EOFError: EOF when reading a line",
        "the program asks for input, and a run in the background has no keyboard",
        "Give the answer as an argument, or leave out the input() in a run.",
    ),
    Cause(
        r"Inappropriate ioctl for device|No such device or address: '/dev/tty'|setupterm: could not find terminal",
        "the program needs a terminal, and a run in the background has none",
        "Ask shutil.get_terminal_size() instead of os.get_terminal_size(), or leave out what draws on the screen.",
    ),
    Cause(
        r"attempted relative import with no known parent package",
        "a file of a package was started as a program of its own",
        "Launch it as a module from the folder above the package: nbtools launch -m package.train.",
    ),
    FILE_MISSING,
    MODULE_MISSING,
    Cause(
        r"Duplicate GPU detected",
        "two ranks use the same GPU",
        "Each rank needs a GPU of its own: lower nproc_per_node to the number of GPUs, or in a script of your own call "
        "torch.cuda.set_device(LOCAL_RANK) before the first collective.",
    ),
    Cause(
        r"port: 0,.*EADDRINUSE",
        "no network port is free: all local ports are used up",
        "End processes with many connections (ss -s), or widen the range (sysctl net.ipv4.ip_local_port_range).",
    ),
    Cause(
        r"Address already in use|EADDRINUSE",
        "a network port is taken",
        "Leave out --master-port (torchrun then takes a free one), or name another; an earlier run may still hold it.",
    ),
    Cause(
        r"terminate called without an active exception\s+Fatal Python error: Aborted\s+(?:Current thread|Thread) 0x\w+ "
        r"(?:\[.{0,40}\] )?\(most recent call first\):\s+<no Python frame>",
        "the script had ended, but a thread of a collective still ran when Python ended",
        "What the script has written is complete. End it with dist.barrier() and dist.destroy_process_group(), so that "
        "no collective is at work by then.",
    ),
    RANK_LOST,
)


_FOLLOWS = re.compile(
    r"^(?:exited with code \d+(?: at step \d+)?: )?(?:\w+\.)*"
    r"(?:Dist(?:Backend|Network|Store)Error|Broken(?:Pipe|Barrier)Error|Connection(?:Reset|Aborted|Refused)Error|SystemExit|KeyboardInterrupt|SignalException|SIGTERMException"
    r"|StopIteration|Empty)(?::|$)|/gloo/|monitoredBarrier"
)
"""Errors of communication, requests to end, and exceptions that programs handle, with a collective in the handler."""
_AFTER_FREE_MEMORY = re.compile(r"(?<= is free)\. .*", re.DOTALL)


def without_allocator(message: str) -> str:
    """Return a message of torch without what follows the GPU's free memory: the allocator's figures and a variable."""
    return _AFTER_FREE_MEMORY.sub("", message)


def cause_of(message: str, said: str = "", led_to: str = "") -> Cause | None:
    """Return the first known cause of an error with this message.

    Args:
        message: The message.
        said: All exceptions of its traceback, a line each.
        led_to: Those that were not handled.
    """
    for cause in CAUSES:
        others = "" if cause is RANK_LOST else led_to if cause.is_often_handled else said
        if re.search(cause.pattern, f"{message}\n{others}"):
            return cause
    return None


def is_echo(message: str) -> bool:
    """Whether a rank with this message only noticed that another rank had failed."""
    return cause_of(message) is RANK_LOST


def follows_another(message: str) -> bool:
    """Whether an error may follow from another rank's: a lost connection, a long wait, a request to end."""
    cause = cause_of(message)
    return cause in (RANK_LOST, TIMEOUT, NOT_JOINED) if cause else _FOLLOWS.search(message) is not None


def waited(said: str) -> str:
    """Return how long a rank waited for a collective, by its error: `10 min`."""
    if (found := re.search(r"(?:Timed out waiting |Timeout\(ms\)=|wait timeout after )(\d{1,12})", said)) is None:
        return "too long"
    seconds = int(found[1]) / 1000
    return f"{seconds / 60:.3g} min" if seconds >= 60 else f"{seconds:.3g} s"


SIGNALS = {
    "SIGKILL": (
        "from outside (kill -9, a scheduler, or the container's limit)",
        "Its output holds no reason: check the scheduler (sacct), the container's memory limit, dmesg for OOM kills.",
    ),
    "SIGTERM": ("asked to end from outside (kill, or a scheduler's preemption)", None),
    "SIGINT": ("interrupted from outside (Ctrl-C)", None),
    "SIGSEGV": (
        "a segmentation fault in native code",
        "An extension crashed, or does not fit the build of torch or the driver; PYTHONFAULTHANDLER=1 in the "
        "environment prints the Python line, num_workers=0 excludes DataLoader workers.",
    ),
    "SIGABRT": ("aborted by native code (NCCL's watchdog, or a failed check)", "Its last lines of output say why."),
    "SIGBUS": ("most likely shared memory (/dev/shm) ran out, or a file it had mapped was cut", _SHARED_MEMORY),
    "SIGILL": ("an instruction that this CPU does not have", "Install builds of torch and numpy made for this CPU."),
    "SIGXCPU": ("its limit of CPU time was reached", "Raise the limit (ulimit -t, or the scheduler's)."),
    "SIGXFSZ": ("its limit of file size was reached", "Raise the limit (ulimit -f)."),
}
"""Meaning of a signal and advice, for ranks that were not killed for lack of memory."""


_ALARMING_SHARE = 0.9


@dataclass(frozen=True)
class HostMemory:
    """Memory of the host, or of the container (control group) around this process if that has less left."""

    memory_used_bytes: int
    """Memory in use, without page cache."""
    memory_total_bytes: int
    oom_kills: int | None
    """Number of processes that the kernel killed for lack of memory; None if it is unknown."""

    @classmethod
    def from_row(cls, row: object) -> Self | None:
        """Return the memory in a row of system.jsonl; None if the row has none."""
        values = row if isinstance(row, Mapping) else {}
        used, total, kills = (whole(values.get(name)) for name in cls.__dataclass_fields__)
        return cls(used, total, kills) if used is not None and total else None

    @property
    def share(self) -> float:
        """Share of the memory that is in use."""
        return self.memory_used_bytes / self.memory_total_bytes

    def __str__(self) -> str:
        return f"{self.memory_used_bytes / 2**30:.1f} of {self.memory_total_bytes / 2**30:.1f} GiB in use"


def host_memory(cgroups: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> HostMemory:
    """Return the memory in use and in total, within the limits of control groups (version 2), in about 0.5 ms."""
    memory = psutil.virtual_memory()
    levels = [(memory.total - memory.available, memory.total)]
    oom_kills = None
    for folder in _control_groups(cgroups, proc):
        if oom_kills is None:  # the innermost group counts the kills of its own processes
            oom_kills = _numbers(folder / "memory.events").get("oom_kill")
        total, used, parts = (_numbers(folder / f"memory.{name}") for name in ("max", "current", "stat"))
        if total.get("") and "" in used:
            cache = parts.get("file", 0) - parts.get("shmem", 0)  # shared memory within it cannot be dropped
            levels.append((used[""] - cache, total[""]))
    used_bytes, total_bytes = min(levels, key=lambda level: level[1] - level[0])
    if oom_kills is None:
        oom_kills = _numbers(proc / "vmstat").get("oom_kill")
    return HostMemory(max(0, used_bytes), total_bytes, oom_kills)


def lack_of_memory(before: Sequence[HostMemory], now: HostMemory) -> str | None:
    """Return a sentence if memory most likely ran out, by readings before and after a SIGKILL; else None."""
    if not before:
        return None
    fullest = max(before, key=lambda reading: reading.share)
    first, last = before[0].oom_kills, now.oom_kills
    if first is not None and last is not None and (kills := last - first) > 0:
        ended, size = plural(kills, "process"), f"{fullest.memory_total_bytes / 2**30:.1f} GiB"
        return f"most likely the host ran out of memory: the kernel ended {ended} for lack of it ({size} in all)"
    return f"most likely the host ran out of memory: {fullest}" if fullest.share >= _ALARMING_SHARE else None


def _control_groups(cgroups: Path, proc: Path) -> Iterator[Path]:
    """Yield the folders of the control groups of this process, inner ones first."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:  # not on Linux
        return
    for name in (line.removeprefix("0::") for line in lines if line.startswith("0::")):
        folder = cgroups / name.lstrip("/")
        yield folder
        yield from (parent for parent in folder.parents if parent.is_relative_to(cgroups))  # a container shows some


def _numbers(path: Path) -> dict[str, int]:
    """Return the numbers in lines of `name number`; a number alone has the name `""`. Empty without a readable file."""
    try:
        lines = [line.rpartition(" ") for line in path.read_text().splitlines()]
    except (OSError, ValueError):
        return {}
    return {name: int(number) for name, _, number in lines if number.isdecimal()}
