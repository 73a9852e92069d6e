"""PyTorch's Flight Recorder: NCCL's last collectives of each rank, which torch writes when one of them times out.

torch pickles a dump of plain values; it is read without loading any class. `torchfrtrace RUN_DIR/ranks -p
nccl_trace_rank_` analyses the same files.
"""

import io
import pickle
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Never

from nbtools.rundir.rundir import RunDir, foreign_owner
from nbtools.rundir.tail import one_line, open_regular

_NAMES = {
    "TORCH_FR_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "TORCH_FR_DUMP_TEMP_FILE": "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
}
"""Variables of torch from 2.8 on, which warns about the names that came before."""
_NUM_COLLECTIVES = "2000"
_LARGEST_BYTES = 16 * 2**20
"""Largest dump that is read; 2,000 collectives with their frames take about 2 MB."""
_MAX_DUMPS = 64


def recorder_variables(run: RunDir, environment: Mapping[str, str], torch_version: str) -> dict[str, str]:
    """Return the variables that turn the recorder on, without those already in `environment` under either name."""
    major_minor = [int(number) for number in re.findall("[0-9]+", torch_version)[:2]]
    values = (_NUM_COLLECTIVES, "1", str(run.collectives))
    return {
        name if major_minor >= [2, 8] else before: value
        for (name, before), value in zip(_NAMES.items(), values, strict=True)
        if name not in environment and before not in environment
    }


@dataclass(frozen=True)
class Collective:
    """One call of a collective by a rank."""

    group: str
    """Name of the process group."""
    number: int
    """Sequence number among the collectives of the group, from 1."""
    call: str
    """Name and shapes, as `all_reduce of [3, 4]`."""
    has_ended: bool
    time: int
    """Time of the call in ns."""


@dataclass(frozen=True)
class Stuck:
    """A collective that ranks wait in."""

    first: Collective
    """The call by the rank that called it first."""
    missing: tuple[int, ...]
    """Ranks that did not call it; empty if all did."""
    others: tuple[tuple[int, str], ...]
    """Ranks that called a different collective at this position, and its description."""

    def __str__(self) -> str:
        other = "".join(f", where rank {rank} called {call}" for rank, call in self.others[:1])
        return f"{self.first.call} (collective {self.first.number:,}{other})"


def stuck_collective(run: RunDir) -> Stuck | None:
    """Return the first collective that ranks wait in, by the dumps in `ranks/`; None if they show none."""
    dumps = dict(_dumps(run))
    found = [stuck for group, members in _groups(dumps).items() if (stuck := _stuck(group, members, dumps))]
    return min(found, key=lambda stuck: stuck.first.time, default=None)


@dataclass(frozen=True)
class _Dump:
    """The record of one rank."""

    calls: tuple[Collective, ...]
    is_whole: bool
    """Whether `calls` begins with the first collective of the rank."""
    groups: Mapping[str, tuple[int, ...]]
    """Members of the process groups."""


def _groups(dumps: Mapping[int, _Dump]) -> dict[str, set[int]]:
    """Return the members of each process group that was used."""
    found: dict[str, set[int]] = {}
    for rank, dump in dumps.items():
        for group in {call.group for call in dump.calls}:
            found.setdefault(group, {rank}).update((rank, *dump.groups.get(group, ())))
    return found


def _stuck(group: str, members: set[int], dumps: Mapping[int, _Dump]) -> Stuck | None:
    calls = {rank: {call.number: call for call in dumps[rank].calls if call.group == group} for rank in dumps}
    known = {rank for rank in members & dumps.keys() if calls[rank] or dumps[rank].is_whole}
    last = {rank: max(calls[rank], default=0) for rank in known}
    waiting = [call.number for rank in known for call in calls[rank].values() if not call.has_ended]
    number = min(waiting, default=min(last.values()) + 1 if len(set(last.values())) > 1 else 0)
    came = {rank: calls[rank][number] for rank in sorted(known) if number in calls[rank]}
    if not came:
        return None
    first = min(came.values(), key=lambda call: call.time)
    missing = {rank for rank in known if last[rank] < number} or members - dumps.keys()
    others = [(rank, call.call) for rank, call in came.items() if call.call != first.call]
    return Stuck(first, tuple(sorted(missing)), tuple(others))


class _PlainUnpickler(pickle.Unpickler):
    """Reads containers, numbers and texts; a pickle that names a class or a function is refused."""

    def find_class(self, module_name: str, global_name: str) -> Never:
        raise pickle.UnpicklingError(f"{module_name}.{global_name}: not a plain value")


def _dumps(run: RunDir) -> Iterator[tuple[int, _Dump]]:
    """Yield the ranks' dumps; unreadable ones, and those of other users, are left out."""
    for path in sorted(run.ranks.glob(f"{run.collectives.name}*"))[:_MAX_DUMPS]:
        rank = path.name.removeprefix(run.collectives.name)
        if not rank.isdecimal():
            continue
        try:
            if foreign_owner(path):
                continue
            with open_regular(path) as file:
                content = file.read(_LARGEST_BYTES)
            yield int(rank), _read(_PlainUnpickler(io.BytesIO(content)).load())
        except Exception:  # noqa: BLE001 - of a damaged file, anything: its ranks' failure must be recorded
            continue


def _read(content: Mapping[str, Any]) -> _Dump:
    entries = content["entries"]
    groups = {
        str(group["name"]): tuple(map(int, re.findall("[0-9]+", group["ranks"])))
        for group in content["pg_config"].values()
    }
    calls = [
        Collective(
            str(entry["process_group"][0]),
            int(entry["collective_seq_id"]),
            _in_words(entry),
            entry["state"] == "completed" or entry["retired"] is True,
            int(entry["time_created_ns"]),
        )
        for entry in entries
        if entry["is_p2p"] is False
    ]
    return _Dump(tuple(calls), not entries or entries[0]["record_id"] == 0, groups)


def _in_words(entry: Mapping[str, Any]) -> str:
    name = str(entry["profiling_name"]).partition(":")[2]
    shapes = ", ".join(str([int(size) for size in shape]) for shape in entry["input_sizes"][:2])
    return one_line(f"{name} of {shapes}" if shapes else name, 80)
