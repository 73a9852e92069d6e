"""The initial state of a training: from scratch, from a checkpoint, or from a file of weights of an older program."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from nbtools.config import TrainConfig
from nbtools.data.split import DataDigest
from nbtools.errors import CheckpointError
from nbtools.project import expanded
from nbtools.recipes import recipe_of
from nbtools.run.checkpoints import Progress
from nbtools.run.records import mapping_at
from nbtools.rundir.json_files import read_json
from nbtools.rundir.rundir import RunDir
from nbtools.training.engine import checkpoint
from nbtools.training.engine.checkpoint import State
from nbtools.training.engine.flags import Flags
from nbtools.training.process.ranks import Ranks
from nbtools.training.sharding.sharded_checkpoint import insert_stored
from nbtools.training.text.adapter import check_bases
from nbtools.training.text.tokenizers import check_vocabulary
from nbtools.training.text.weights import WeightsReport

_WEIGHTS_KEYS = ("model_state_dict", "state_dict", "model")
"""Keys under which older programs store the weights, beside optimizer and epoch."""
_DATA_FIELDS = ("test_fraction", "sequence_length", "eval_samples", "seed")
"""Fields of any recipe that may change its data, beside its `data_fields`."""


@dataclass
class InitialState:
    """The initial state of a training; empty for a start from scratch, in which case its methods change nothing."""

    state: State = field(default_factory=dict)
    rank_state: State = field(default_factory=dict)
    """State of this rank only; empty for a rank that the earlier training did not have."""
    progress: Progress = field(default_factory=Progress)
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics at the step of the checkpoint."""
    model: Path | None = None
    """Folder of the checkpoint that holds the model."""
    weights: Mapping[str, torch.Tensor] | None = None
    """Weights from a file, instead of a checkpoint."""
    weights_file: Path | None = None
    report: WeightsReport | None = None
    """Weights that the models have loaded; None before."""
    data: Mapping[str, Any] | None = None
    """Digest and fields of the data, from the checkpoint's manifest; None if an older version saved it."""
    is_loaded: bool = False
    """Whether a model has loaded the weights."""

    def check_data(self, now: Mapping[str, Any], flags: Flags[Any], files: RunDir, say: Callable[[str], None]) -> None:
        """Compare the data of a training, from `recorded_data`, with that of the checkpoint.

        Other data is fine if the user changed or named one of its fields; a note says that it is other data. A
        checkpoint of an older rule of the split can be forked, with a note, but not resumed.

        Raises:
            CheckpointError: it is other data, or divided by another rule.
        """
        if self.model is None:
            return  # from scratch, or weights alone
        checkpoint, before = self.model.parent, self.data if isinstance(self.data, dict) else {}
        if all(before.get(name) == now[name] for name in ("digest", "rule")):
            return
        fields, origin = mapping_at(before, "fields"), mapping_at(read_json(files.launch) or {}, "resumed_from")
        changed = {name for name, value in now["fields"].items() if fields.get(name, value) != value}
        changed |= now["fields"].keys() & {*flags.named, *origin.get("named", ())}
        values = flags.config.model_dump(mode="json")
        is_fork = flags.recorded is None or any(flags.recorded.get(name, new) != new for name, new in values.items())
        seen = "texts that are evaluated from here on may have been trained on before"
        if not before and not now["rule"]:
            say(f"note: {checkpoint.name} does not record its data, so it may be other data")
        elif before and changed:
            say(f"note: the data is not that of {checkpoint.name} ({', '.join(sorted(changed))}): {seen}")
        elif str(before.get("rule")).partition(",")[0] == now["rule"].partition(",")[0]:
            is_other_size = before.get("size") != now["size"]
            sizes = f"{before.get('size')} until now, {now['size']} from here on" if is_other_size else now["size"]
            field = "train_data" if now["fields"].get("train_data") else "dataset"
            raise CheckpointError(
                f"{checkpoint}: the content or order of the data is not that which it was trained on ({sizes}); "
                f"restore it, or name it to train on what it is now: --set {field}=... (changes={{'{field}': ...}})"
            )
        elif is_fork:
            say(f"note: the split is not that of {checkpoint.name}, which is of an older rule: {seen}")
        else:
            raise CheckpointError(
                f"{checkpoint}: its data was split by an older rule, by which equal texts could be in two parts, so it "
                f"cannot be resumed on it; fork it by a change, such as --set max_steps={2 * self.progress.step} "
                f"({seen}), or train a new run"
            )

    def release(self) -> None:
        """Drop states and weights, which a model, optimizers and random number generators hold from now on."""
        self.state.clear()
        self.rank_state.clear()
        self.weights = None

    def load_weights(
        self, model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase | None = None, part: str = ""
    ) -> None:
        """Load the weights into `model`.

        Args:
            tokenizer: its vocabulary must be the one that the checkpoint was trained with; None for no check.
            part: subfolder of the model, where a checkpoint holds several.

        Raises:
            CheckpointError: the weights or the vocabulary are those of another model.
        """
        self.is_loaded = True
        if self.weights is not None:
            report = checkpoint.fill(model, self.weights, self.weights_file)
        elif self.model is not None:
            if tokenizer is not None:
                check_vocabulary(tokenizer, self.model / part)
            report = checkpoint.load_weights(model, self.model / part)
        else:
            return
        source, before = str(self.weights_file or self.model), self.report or WeightsReport("", 0)
        unexpected, count = before.unexpected + report.unexpected, before.num_weights + report.num_weights
        self.report = replace(report, source=source, num_weights=count, unexpected=unexpected)


def recorded_data(data: DataDigest, config: TrainConfig) -> dict[str, Any]:
    """Return what a checkpoint records of its data: digest, rule of the split, and the fields that decide both."""
    fields = {*recipe_of(config).data_fields, *_DATA_FIELDS}
    return {**asdict(data), "fields": config.model_dump(mode="json", include=fields)}


def open_initial_state(
    path: Path, config: TrainConfig, bases: Mapping[str, Any] | None, ranks: Ranks, say: Callable[[str], None]
) -> InitialState:
    """Open what `--resume-from` names, a checkpoint (every byte verified) or a file of weights; every rank calls it.

    Args:
        bases: what the config's adapter is added to; None without an adapter.

    Raises:
        CheckpointError: it is missing, incomplete, damaged, of another recipe or base, or holds something else.
    """
    recipe, effective_batch = recipe_of(config).key, config.effective_batch(ranks.world_size)
    if ranks.from_main(lambda: expanded(path).is_file()):
        weights = ranks.in_turn(lambda: read_weights(expanded(path)))
        say(f"note: weights only, from {path}: optimizer and place in the data start from the beginning")
        return InitialState(weights=weights, weights_file=path)
    opened = ranks.from_main(lambda: checkpoint.open_verified(path))
    check_bases(opened.path, opened.manifest.get("base"), bases)
    state = checkpoint.load_state(opened.path)
    insert_stored(state, opened.path)
    world_size = opened.manifest.get("world_size", 0)
    rank_state = checkpoint.load_state(opened.path, f"rank-{ranks.rank}.pt") if ranks.rank < world_size else {}
    progress, model, data = Progress(**state["progress"]), opened.path / "model", opened.manifest.get("data")
    initial = InitialState(state, rank_state, progress, opened.metrics, model, data=data)
    if (saved := state.get("recipe", recipe)) != recipe:
        raise CheckpointError(
            f"{opened.path}: is a checkpoint of {saved}, not of {recipe}; resume with a script of {saved}"
        )
    if state.get("effective_batch", effective_batch) != effective_batch:
        say(f"note: {effective_batch} samples per step from here on, {state['effective_batch']} until now")
    elif world_size != ranks.world_size:
        say(f"note: {world_size} processes until now, {ranks.world_size} from here on; the same samples per step")
    return initial


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Read the weights in a file that `torch.save` wrote: a state dict, or one under `model_state_dict`.

    A pickle that would run code is refused.

    Raises:
        CheckpointError: the file cannot be read, or holds no weights.
    """
    content: Any = checkpoint.load_state(path.parent, path.name)
    content = next((content[key] for key in _WEIGHTS_KEYS if isinstance(content.get(key), dict)), content)
    other = next((name for name, value in content.items() if not isinstance(value, torch.Tensor)), None)
    if other is not None or not content:
        what = f"{str(other)[:80]!r} is a {type(content[other]).__name__}" if content else "it is empty"
        raise CheckpointError(
            f"{path}: holds no weights ({what}); give a file with model_state_dict or a bare state dict, or a "
            "checkpoint folder such as runs/ID/checkpoints/step-000200"
        )
    return {str(name): weight for name, weight in content.items()}
