"""The weights of a model that come from its files: one report of every load, and names that a wrapper changed."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from nbtools.errors import ConfigError, plural

_WRAPPERS = ("_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Parts of names that torch.compile, DistributedDataParallel and FSDP add, at any place."""
_NUM_NAMED = 3


@dataclass(frozen=True)
class Renaming:
    """Makes the names in files those of a model: `wrappers` are left out, then the prefix `old` becomes `new`."""

    wrappers: tuple[str, ...] = ()
    old: str = ""
    new: str = ""

    @classmethod
    def between(cls, stored: Collection[str], own: Collection[str]) -> "tuple[Renaming, ...]":
        """Return what makes most names in files those of a model: several if they are equally good.

        Empty if none gives at least half of the model's names.
        """
        parts, known = ({part for name in names for part in name.split(".")} for names in (stored, own))
        wrappers = tuple(wrapper for wrapper in _WRAPPERS if wrapper in parts - known)
        without = cls(wrappers)
        starts: dict[str, list[str]] = {}
        for name in own:
            for start, end in _cuts(name):
                starts.setdefault(end, []).append(start)
        counts = Counter[tuple[str, str]]()
        for name in stored:
            for old, end in _cuts(without(name)):
                last = old.split(".")[-2:]
                counts.update((old, new) for new in starts.get(end, ()) if not old or new.split(".")[-2:] != last)
        most = max(counts.values(), default=0)
        best = [pair for pair, count in counts.items() if count == most and 2 * most >= len(own)]
        return (without,) if ("", "") in best else tuple(cls(wrappers, *pair) for pair in sorted(best))

    def __call__(self, name: str) -> str:
        """Return the model's name of a weight in the files."""
        name = ".".join(part for part in name.split(".") if part not in self.wrappers)
        return self.new + name.removeprefix(self.old) if name.startswith(self.old) else name

    def patterns(self, stored: Collection[str]) -> dict[str, str]:
        """Return the same as the `key_mapping` of `from_pretrained`, each pattern of which replaces once."""
        times = {part: max(name.split(".").count(part) for name in stored) for part in self.wrappers}
        found = {rf"\b{part}\." + "(?:)" * i: "" for part, count in times.items() for i in range(count)}
        return found | ({f"^{re.escape(self.old)}": self.new} if self.old or self.new else {})

    def __str__(self) -> str:
        taken = ", ".join(repr(part) for part in (*(f"{each}." for each in self.wrappers), self.old) if part)
        words = [f"without {taken}"] * bool(taken) + [f"with {self.new!r} before them"] * bool(self.new)
        return f"names in the files are read {' and '.join(words)}" if words else ""


def _cuts(name: str) -> Iterator[tuple[str, str]]:
    """Yield the beginnings of a name, up to its first number, each with the rest."""
    start, end = "", name
    while True:
        yield start, end
        part, dot, rest = end.partition(".")
        if not dot or part.isdecimal():
            return
        start, end = f"{start}{part}.", rest


@dataclass(frozen=True)
class WeightsReport:
    """The weights that a model took from files; those that are missing or of another shape there start at random."""

    source: str
    """A folder, a file or a hub id."""
    num_weights: int
    """Number of tensors of the model; tied ones count once."""
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    """Tensors of the files that are not part of the model."""
    other_shapes: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = ()
    """Names, the shape in the files, and the model's."""
    renaming: Renaming = Renaming()

    @classmethod
    def of(cls, model: PreTrainedModel, source: str, found: Mapping[str, Any], **more: Any) -> "WeightsReport":
        """Return the report on what `from_pretrained` says with `output_loading_info`."""
        own = {name for name, _ in model.named_parameters()}  # of tied ones the first name
        own |= {name for name, buffer in model.named_buffers() if buffer.is_floating_point()}  # others are constants
        missing, unexpected = sorted(own & {*found["missing_keys"]}), sorted(found["unexpected_keys"])
        shapes = sorted((name, tuple(a), tuple(b)) for name, a, b in found["mismatched_keys"] if name in own)
        return cls(source, len([*model.parameters()]), tuple(missing), tuple(unexpected), tuple(shapes), **more)

    def lacking(self, model: PreTrainedModel) -> list[str]:
        """Return the missing weights of the pretrained part of a model; heads and poolers can be new."""
        return [name for name in self.missing if not _is_new_part(model, name)]

    def fitting_names(self, model: PreTrainedModel) -> Renaming | None:
        """Return what gives files the names of a model's pretrained part; None if they have them, or nothing does.

        A prefix of a part alone is none: it may be the name of another part.
        """
        lacking = self.lacking(model)
        has_none = len(lacking) == sum(not _is_new_part(model, name) for name, _ in model.named_parameters())
        fitting = Renaming.between(self.unexpected, lacking) if lacking else ()
        fits = len(fitting) == 1 and (has_none or not (fitting[0].old or fitting[0].new))
        return fitting[0] if fits else None

    def check(self, model: PreTrainedModel, option: str, *, has_new_head: bool) -> None:
        """Raise ConfigError unless the files hold the pretrained part of a model.

        Args:
            option: the config's field that names the files.
            has_new_head: whether the model's head was changed, so that one of another shape in the files is another's.
        """
        for name, stored, own in self.other_shapes:
            if not (has_new_head and _is_new_part(model, name)):
                raise ConfigError(
                    f"{option}={self.source!r}: {name} has the shape {stored}, not {own} as its config.json says; give "
                    "a folder or hub id whose files belong together"
                )
        if lacking := self.lacking(model):
            others = f"; the files have {_named(self.unexpected, 'other')}" if self.unexpected else ""
            several = [repr(each.old) for each in Renaming.between(self.unexpected, lacking)]
            choice = f"; they fit without each of the prefixes {', '.join(several)}: save those of one alone"
            raise ConfigError(
                f"{option}={self.source!r}: {len(lacking)} missing weights, such as {', '.join(lacking[:_NUM_NAMED])}, "
                f"of {self.num_weights}{others}{choice * (len(several) > 1)}; give a folder or hub id with a "
                f"whole {type(model).__name__}, under the names that its save_pretrained writes"
            )

    def __str__(self) -> str:
        new = (*self.missing, *(name for name, _, _ in self.other_shapes))
        fitting = f"{self.num_weights - len(new)} of" if new else "all"
        parts = [f"{fitting} {self.num_weights} weights are from {self.source}"]
        parts += [f"{_named(new, 'weight')} of a new part, not in the files: started at random"] * bool(new)
        parts += [f"left out of the files: {_named(self.unexpected, 'weight')}"] * bool(self.unexpected)
        return "; ".join(filter(None, [*parts, str(self.renaming)]))

    def to_json(self) -> dict[str, Any]:
        """Return numbers and first names for config.json; `note` has the same in words."""
        lists = {"missing": self.missing, "unexpected": self.unexpected}
        lists["other_shapes"] = tuple(name for name, _, _ in self.other_shapes)
        named = {key: {"count": len(names), "names": list(names[:_NUM_NAMED])} for key, names in lists.items() if names}
        fitting = self.num_weights - len(self.missing) - len(self.other_shapes)
        return {"source": self.source, "fitting": fitting, **named, "renamed": str(self.renaming), "note": str(self)}


def _is_new_part(model: PreTrainedModel, name: str) -> bool:
    """Whether a weight is of a head, beside the base model, or of a pooler, which not every file has."""
    is_head = model.base_model is not model and not name.startswith(f"{model.base_model_prefix}.")
    return is_head or "pooler" in name.split(".")


def _named(names: Collection[str], what: str) -> str:
    return f"{plural(len(names), what)} ({', '.join([*names][:_NUM_NAMED])}{', …' * (len(names) > _NUM_NAMED)})"
