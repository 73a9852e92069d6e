"""Known errors in words, and what the memory was like when a process was killed."""

import re
import signal
from dataclasses import asdict
from pathlib import Path

import pytest

from nbtools.failures import known_errors
from nbtools.failures.evidence import error_line, last_output
from nbtools.failures.known_errors import HostMemory, cause_of, host_memory, lack_of_memory

# As torch 2.13, Python 3.11 and the kernel said it.
GLOO = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/"
NCCL = "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, "
DUPLICATE = (
    NCCL + "invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.20.5\n"
    "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
    "Last error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 10\n"
)
SAID = {
    "the GPU ran out of memory": [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of …",
        "RuntimeError: CUDA error: out of memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        error_line(
            NCCL + "unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5\n"
            "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'"
        ),
        "include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'",
    ],
    "the process could get no more memory": [
        "MemoryError",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
        "tried to allocate 17179869184 bytes. Error code 12 (Cannot allocate memory)",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 32.0 GiB for an array",
        "OSError: [Errno 12] Cannot allocate memory",
        "MemoryError: Caught MemoryError in DataLoader worker process 0.",
        "terminate called after throwing an instance of 'std::bad_alloc'",
    ],
    "too many files are open": [
        "OSError: [Errno 24] Too many open files: '/dev/shm/torch_1'",
        "RuntimeError: received 0 items of ancdata",
    ],
    "shared memory (/dev/shm) ran out": [
        "RuntimeError: DataLoader worker (pid 8228) is killed by signal: Bus error. It is possible that dataloader's "
        "workers are out of shared memory. Please try to raise your shared memory limit.",
        "RuntimeError: unable to open shared memory object </torch_1_2> in read-write mode: No space left on device",
        "RuntimeError: unable to write to file </torch_9895_1984721229_0>: No space left on device (28)",
        "OSError: [Errno 28] No space left on device: '/dev/shm/pym-9895-x'",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
    ],
    "the disk is full": ["OSError: [Errno 28] No space left on device: '/scratch/x'"],
    "the disk quota is used up": ["OSError: [Errno 122] Disk quota exceeded"],
    "the limit of file size was reached": [
        "OSError: [Errno 27] File too large",
        "safetensors_rust.SafetensorError: Error while serializing: I/O error: File too large (os error 27)",
    ],
    "a file could not be written whole": [
        "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598",
        "OSError: 100000 requested and 496 written",
    ],
    "the file system is read-only": ["OSError: [Errno 30] Read-only file system: '/scratch/x'"],
    "a DataLoader worker died": [
        "RuntimeError: DataLoader worker (pid 8210) is killed by signal: Killed. ",
        "RuntimeError: DataLoader worker (pid(s) 8228) exited unexpectedly",
    ],
    "raised in a DataLoader worker": ["ValueError: Caught ValueError in DataLoader worker process 0."],
    "waited too long for another rank": [
        GLOO + "unbound_buffer.cc:78] Timed out waiting 600000ms for recv operation to complete",
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=4, "
        "NumelOut=4, Timeout(ms)=600000) ran for 600028 milliseconds before timing out.",
        "torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /0//cpu//0/1",
    ],
    "the rendezvous of the run's machines failed": [
        "torch.distributed.DistStoreError: Timed out after 3601 seconds waiting for clients. 1/2 clients joined.",
        "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to "
        "(10.0.0.1, 29500).",
    ],
    "an index was out of range on the GPU (device-side assert)": [
        "torch.AcceleratorError: CUDA error: device-side assert triggered"
    ],
    "this build of torch has no code for this GPU": [
        "RuntimeError: CUDA error: no kernel image is available for execution on the device"
    ],
    "a GPU is requested, and the processes have none": [
        "AssertionError: Torch not compiled with CUDA enabled",
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed …",
        "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False. If …",
    ],
    "the program asks for input, and a run in the background has no keyboard": ["EOFError: EOF when reading a line"],
    "the program needs a terminal, and a run in the background has none": [
        "OSError: [Errno 25] Inappropriate ioctl for device",
        "OSError: [Errno 6] No such device or address: '/dev/tty'",
        "_curses.error: setupterm: could not find terminal",
    ],
    "a file of a package was started as a program of its own": [
        "ImportError: attempted relative import with no known parent package"
    ],
    "a file is missing": ["FileNotFoundError: [Errno 2] No such file or directory: 'data/train.csv'"],
    "a package is missing": ["ModuleNotFoundError: No module named 'flash_attn'"],
    "two ranks use the same GPU": [error_line(DUPLICATE)],
    "no network port is free: all local ports are used up": [
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 0, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
    ],
    'the script has no if __name__ == "__main__":, and a process that it started ran the script again': [
        "An attempt has been made to start a new process before the\n        current process has finished its"
    ],
    "a network port is taken": [
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        "OSError: [Errno 98] Address already in use",
    ],
    "the script had ended, but a thread of a collective still ran when Python ended": [
        "step 1200/1200 loss 0.2\nterminate called without an active exception\nFatal Python error: Aborted\n\n"
        "Thread 0x00007f1baec78b80 (most recent call first):\n  <no Python frame>\n\nExtension modules: numpy._core …"
    ],
    "another rank was lost": [
        GLOO + "pair.cc:553] Connection closed by peer [127.0.0.1]:48812. This is typically caused by a remote worker "
        "crashing. Check the logs of the remote worker before reporting an error.",
        GLOO + "pair.cc:544] Read error [127.0.0.1]:48812: Connection reset by peer",
        GLOO + "pair.cc:547] writev [127.0.0.1]:48812: Broken pipe",
        NCCL + "remote process exited or there was a network error, NCCL version 2.21.5",
        error_line(
            NCCL + "internal error, NCCL version 2.14.3\nncclInternalError: Internal check failed.\nLast error:\n"
            "Net : Connection closed by remote peer user<50260>\n"
        ),
    ],
}


OF_A_GPU = (
    "exited with code 1: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 0 has a total "
    "capacity of 139.80 GiB of which 609.50 MiB is free. Process 456 has 610.00 MiB memory in use. Including "
    "non-PyTorch memory, this process has 138.60 GiB memory in use. Of the allocated memory 138.00 GiB is allocated by "
    "PyTorch, and 0 bytes is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try "
    "setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
"""What torch 2.11 said on an NVIDIA H200."""


def test_the_message_of_a_full_gpu_ends_with_what_was_free() -> None:
    assert known_errors.without_allocator(OF_A_GPU).endswith(
        "has a total capacity of 139.80 GiB of which 609.50 MiB is free"
    )
    assert known_errors.without_allocator("CUDA error: out of memory") == "CUDA error: out of memory"


@pytest.mark.promise("guide-L10", "guide-A11", "guide-O11", "guide-M11", "guide-G11")
@pytest.mark.parametrize(("words", "said"), [(words, said) for words, texts in SAID.items() for said in texts])
def test_a_known_error_is_told_apart_in_words_with_what_to_do(words: str, said: str) -> None:
    cause = cause_of(said)
    assert cause is not None
    assert cause.words == words
    assert cause.advice.endswith(".")
    assert known_errors.is_echo(said) == (words == "another rank was lost")


def test_every_row_of_the_table_is_reached_by_an_error_that_was_seen() -> None:
    assert {cause.words for cause in known_errors.causes()} == set(SAID)


def test_nccl_s_reason_is_part_of_the_one_line_that_is_shown() -> None:
    reason = "NCCL version 2.20.5 (Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 10)"
    assert error_line(DUPLICATE).endswith(reason)
    frames = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    dist.barrier()\n'
    message, traceback = last_output(f"noise\n{frames}{DUPLICATE}", 1)
    assert message.endswith(reason) and traceback is not None
    assert error_line("ValueError: boom\nLast error:\nof another program") == "ValueError: boom"


@pytest.mark.parametrize(
    "said",
    [
        "ValueError: boom",
        "ConnectionResetError: [Errno 104] Connection reset by peer",  # a download's
        "BrokenPipeError: [Errno 32] Broken pipe",
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 262144",
        "",
    ],
)
def test_other_errors_are_left_as_they_are(said: str) -> None:
    assert cause_of(said) is None


def test_what_led_to_an_error_explains_it_unless_it_is_an_echo() -> None:
    chained = "RuntimeError: gave up"
    found = cause_of(chained, "torch.OutOfMemoryError: CUDA out of memory.")
    assert found is not None
    assert found.words == "the GPU ran out of memory"
    assert cause_of(chained, GLOO + "pair.cc:553] Connection closed by peer") is None


@pytest.mark.parametrize(
    ("said", "time"),
    [
        ("Timed out waiting 600000ms for recv", "10 min"),
        ("OpType=ALLREDUCE, Timeout(ms)=90000) ran for", "1.5 min"),
        ("wait timeout after 4000ms, keys", "4 s"),
        ("Application timeout caused pair closure", "too long"),
    ],
)
def test_how_long_a_collective_was_waited_for_is_read_from_its_error(said: str, time: str) -> None:
    assert known_errors.waited(said) == time


def test_signals_are_named_as_the_system_names_them() -> None:
    told = [number.name for number in signal.Signals if known_errors.signal_meaning(number.name)[0]]
    assert len(told) == len(known_errors._tables()["signal"]) == 9


# --- memory -----------------------------------------------------------------------------------------

GIB = 2**30


def test_the_memory_in_use_is_told_as_a_part_of_the_whole() -> None:
    memory = host_memory()
    assert 0 < memory.memory_used_bytes <= memory.memory_total_bytes
    assert re.fullmatch(r"\d+\.\d of \d+\.\d GiB in use", str(memory))
    assert HostMemory.from_row({"time": 1.0, **asdict(memory)}) == memory


@pytest.mark.parametrize(
    "row",
    [None, [], {}, {"memory_used_bytes": 1}, {"memory_used_bytes": 1, "memory_total_bytes": 0}]
    + [{"memory_used_bytes": used, "memory_total_bytes": 9} for used in ("1", True, -1, 2**80)],
)
def test_a_row_that_does_not_tell_of_memory_is_none(row: object) -> None:
    assert HostMemory.from_row(row) is None


def group(folder: Path, limit: str, used: int, cache: int = 0, oom_kills: int | None = None) -> None:
    """Lay out a control group's files as the kernel shows them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\nfile {cache}\nshmem 0\n")
    if oom_kills is not None:
        (folder / "memory.events").write_text(f"under_oom 0\noom_kill {oom_kills}\noom_group_kill 9\n")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc"
    (folder / "self").mkdir(parents=True)
    (folder / "vmstat").write_text("nr_free_pages 5\noom_kill 7\n")
    return folder


def test_the_limit_of_a_container_counts_where_it_leaves_less(tmp_path: Path, proc: Path) -> None:
    (proc / "self" / "cgroup").write_text("9:freezer:/other\n0::/job/task\n")
    group(tmp_path / "cgroup" / "job" / "task", "max", 10, oom_kills=3)
    group(tmp_path / "cgroup" / "job", "1000", 990, cache=40, oom_kills=4)
    assert host_memory(tmp_path / "cgroup", proc) == HostMemory(950, 1000, 3)


def test_a_container_that_sees_its_own_group_as_the_root_is_measured(tmp_path: Path, proc: Path) -> None:
    (proc / "self" / "cgroup").write_text("0::/../../elsewhere\n")
    group(tmp_path / "cgroup", "1000", 999)
    assert host_memory(tmp_path / "cgroup", proc) == HostMemory(999, 1000, 7)


def test_without_control_groups_the_host_is_measured(tmp_path: Path, proc: Path) -> None:
    memory = host_memory(tmp_path / "nothing", proc)
    assert memory.memory_total_bytes == host_memory(tmp_path, tmp_path).memory_total_bytes > GIB // 8
    assert (memory.oom_kills, host_memory(tmp_path, tmp_path).oom_kills) == (7, None)


def test_a_kill_that_the_kernel_counted_is_told_however_fast_memory_filled() -> None:
    before = [HostMemory(3 * GIB, 10 * GIB, 2), HostMemory(4 * GIB, 10 * GIB, 2)]
    said = lack_of_memory(before, HostMemory(GIB, 10 * GIB, 3))
    assert said == "most likely the host ran out of memory: the kernel ended 1 process for lack of it (10.0 GiB in all)"
    assert lack_of_memory(before, HostMemory(GIB, 10 * GIB, 2)) is None
    assert lack_of_memory(before, HostMemory(GIB, 10 * GIB, None)) is None


def test_a_missing_file_with_a_whole_path_is_no_matter_of_the_working_directory() -> None:
    assert cause_of("FileNotFoundError: [Errno 2] No such file or directory: '/data/train.csv'") is None
