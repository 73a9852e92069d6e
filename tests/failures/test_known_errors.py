"""Known errors in words, and what the memory was like when a process was killed."""

import re
import signal
import tomllib
from dataclasses import asdict
from pathlib import Path

import pytest

from nbtools.failures import known_errors
from nbtools.failures.evidence import error_line, last_output
from nbtools.failures.known_errors import HostMemory, cause_of, host_memory, lack_of_memory

SEEN = tomllib.loads(Path(__file__).with_name("known_errors_seen.toml").read_text(encoding="utf-8"))["seen"]
GLOO = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/"
DUPLICATE: str = next(error for row in SEEN for error in row["errors"] if "Duplicate GPU detected" in error)


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
@pytest.mark.parametrize(("words", "said"), [(row["words"], said) for row in SEEN for said in row["errors"]])
def test_a_known_error_is_told_apart_in_words_with_what_to_do(words: str, said: str) -> None:
    said = error_line(said) if "NCCL error" in said else said
    cause = cause_of(said)
    assert cause is not None
    assert cause.words == words
    assert cause.advice.endswith(".")
    assert known_errors.is_echo(said) == (words == "another rank was lost")


def test_every_row_of_the_table_is_reached_by_an_error_that_was_seen() -> None:
    assert {cause.words for cause in known_errors.causes()} == {row["words"] for row in SEEN}


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
