"""Writes checkpoints atomically, and loads them: written under a temporary name, synced, hashed, then renamed.

checkpoints/step-000200/
  model/         written by `save_pretrained`: safetensors weights, or an adapter alone; config, tokenizer
  state.pt       optimizer and place in the data, for `torch.load(weights_only=True)`
  rank-<r>.pt    each rank's random number generators
  manifest.json  written last: step, metrics, the base of an adapter, a digest of the data, and the size and SHA-256 of
                 every other file
"""

import contextlib
import threading
import time
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers import PretrainedConfig, PreTrainedModel

from nbtools.errors import CheckpointError
from nbtools.project import expanded, file_digest
from nbtools.run.checkpoints import Checkpoint, Progress, best_of, checkpoints_in
from nbtools.rundir import json_files, rundir
from nbtools.rundir.atomic import discard, hidden_name, new_folder, sync_to_disk
from nbtools.training.sharding.fsdp import own_part, own_rows_of
from nbtools.training.sharding.stored_tensors import StoredTensor, stored_tensors
from nbtools.training.text import adapter, pretrained_models
from nbtools.training.text.adapter import saved_weights
from nbtools.training.text.weights import Renaming, WeightsReport

State = dict[str, Any]
"""Plain values and tensors, which `torch.load(weights_only=True)` loads."""


# --- writing --------------------------------------------------------------------------------------


def save(
    folder: Path,
    progress: Progress,
    *,
    write_model: Callable[[Path], None],
    write_shards: Callable[[Path], dict[str, dict[str, Any]]] | None = None,
    state: Mapping[str, Any],
    rank_states: Sequence[State],
    metrics: Mapping[str, float],
    keep_last: int,
    keep_best: int = 0,
    **more: Any,
) -> Path:
    """Write `folder`/step-… from one process and remove older checkpoints beyond those to keep.

    Every byte is on disk before the name is visible. Threads write the model beside the states, and hash beside syncs.

    Args:
        write_model: writes the model's files into the folder that it is given.
        write_shards: writes and syncs those of all ranks into the checkpoint's folder; returns their size and SHA-256.
        state: of the recipe, the same on all ranks; plain values and tensors.
        rank_states: of every rank, by rank: `random_state()` and sums since the last metric row.
        keep_best: how many to keep in addition, those that are first in `best_of`.
        **more: further values of the manifest, such as `attempt`; None leaves one out. `best_of` reads `best_by` (a
            metric; checkpoints of steps that did not measure it do not count as best), `lower_is_better` and `stage`
            (of the training; only checkpoints of the newest one's stage count as best). `base` is what an adapter was
            added to, `data` what `initial_state.recorded_data` returns.

    Raises:
        OSError: it could not be written (disk full); nothing of it remains, and older checkpoints are untouched.
    """
    final = rundir.RunDir(folder.parent).checkpoint(progress.step)
    # A folder already there is damaged, or an earlier attempt abandoned it at this step.
    with new_folder(final, sync=True, is_stale=lambda: True) as temporary:
        (temporary / "model").mkdir()
        files = {} if write_shards is None else write_shards(temporary)
        states = {"state.pt": {**state, "progress": asdict(progress)}}
        states |= {f"rank-{rank}.pt": rank_state for rank, rank_state in enumerate(rank_states)}
        with ThreadPoolExecutor(4) as threads:
            model = threads.submit(_save_model, write_model, temporary / "model")
            for name, content in states.items():
                _save(content, temporary / name)
            model.result()
            paths = {path.relative_to(temporary).as_posix(): path for path in temporary.rglob("*") if path.is_file()}
            names = sorted(paths.keys() - files)
            digests = threads.map(file_digest, (paths[name] for name in names))  # beside the syncs
            for name in names:
                sync_to_disk(paths[name])
            for name, digest in zip(names, digests, strict=True):
                files[name] = {"bytes": paths[name].stat().st_size, "sha256": digest}
        manifest = {
            **asdict(progress),
            "time": time.time(),
            "world_size": len(rank_states),
            **({} if write_shards is None else {"strategy": "fsdp", "num_shards": len(rank_states)}),
            "metrics": {name: json_files.strict_number(value) for name, value in metrics.items()},
            **{name: value for name, value in more.items() if value is not None},
            "files": dict(sorted(files.items())),
        }
        json_files.write_json(temporary / "manifest.json", manifest, sync=True)
    prune(folder, progress.step, keep_last, keep_best)
    return final


def prune(folder: Path, step: int, keep_last: int, keep_best: int = 0) -> None:
    """Keep the `keep_last` newest and the `keep_best` best checkpoints up to `step`, and those that were asked for.

    The one at `step` was just written and is complete. Later ones are not counted: an earlier attempt left them, maybe
    damaged, and they must not displace the only one that verifies.
    """
    if folder.is_symlink():  # another's folder may have come in its place: its checkpoints stay
        return
    older = [checkpoint for checkpoint in checkpoints_in(folder) if checkpoint.step <= step]
    best = best_of(older, keep_best)
    older = [checkpoint for checkpoint in older if not checkpoint.manifest.get("asked")]
    for checkpoint in older[:-keep_last]:
        if checkpoint in best:
            continue
        hidden = hidden_name(checkpoint.path, "old")
        with contextlib.suppress(OSError):  # a failed removal does not end the training
            checkpoint.path.rename(hidden)  # at once: a half-removed checkpoint is never listed
            threading.Thread(target=discard, args=(hidden,), name="prune").start()  # gigabytes take seconds


def remove_leftovers(folder: Path) -> None:
    """Remove temporary folders of interrupted saves and removals."""
    for path in () if folder.is_symlink() else folder.glob(".step-*.tmp"):
        discard(path)


def _save(state: State, path: Path) -> None:
    try:
        with path.open("wb") as file:
            torch.save(state, file)
    except RuntimeError as error:  # torch's own, of several kinds, follows from that of a failed write
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def _save_model(write_model: Callable[[Path], None], folder: Path) -> None:
    try:
        write_model(folder)
    except Exception as error:
        if isinstance(error, SafetensorError) or "(os error " in str(error):  # a failed write; the latter of tokenizers
            raise OSError(str(error)) from error
        raise


# --- reading --------------------------------------------------------------------------------------


def open_verified(path: Path) -> Checkpoint:
    """Return the checkpoint in a folder after verifying all files; CheckpointError if it is not whole."""
    path = path.expanduser().resolve()
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such folder; give one such as runs/ID/checkpoints/step-000200")
    checkpoint = Checkpoint.read(path)
    checkpoint.verify()
    return checkpoint


def model_folder(path: str | Path) -> Path:
    """Return a folder that `from_pretrained` loads; the files of a checkpoint are verified.

    Args:
        path: a run's folder, for its newest checkpoint; a checkpoint's; or one that `save_pretrained` wrote.

    Raises:
        CheckpointError: there is none, or it is incomplete or damaged.
    """
    folder = expanded(path).resolve()
    if (folder / "checkpoints").is_dir():
        saved = checkpoints_in(folder / "checkpoints")
        if not saved:
            raise CheckpointError(f"{folder}: has no checkpoint yet; wait until the training saves one")
        folder = saved[-1].path
    if (folder / "manifest.json").is_file():
        folder = open_verified(folder).path / "model"
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; give a run, such as runs/ID, or one of its checkpoints")
    return folder


def open_model(folder: Path, load: Callable[[str], PreTrainedModel] | None = None) -> PreTrainedModel:
    """Load a model that `save_model` wrote, with fp32 weights; an adapter is added to its base, not merged.

    Args:
        load: loads a whole model or a base by its name; None takes the class of `transformers` that config.json names.

    Raises:
        CheckpointError: the folder is damaged, or names no class of `transformers`.
        ConfigError: the weights cannot be loaded.
    """
    base = adapter.base_name(folder)
    name = str(base or folder)
    if load is not None:
        model = load(name)
    else:
        (named,) = PretrainedConfig.get_config_dict(folder)[0].get("architectures") or ("",)
        known = getattr(transformers, named, None)
        if not (isinstance(known, type) and issubclass(known, PreTrainedModel)):
            raise CheckpointError(f"{folder}: config.json names no model of transformers ({named[:80]!r})")
        labels: dict[str, Any] = {"num_labels": 1} if named.endswith("TokenClassification") else {}
        model = pretrained_models.load_model(known, name, named, **labels)
    report = getattr(model, "weights_report", None)
    if base is None and report is not None and (lost := (*report.missing, *report.other_shapes)):
        raise CheckpointError(f"{folder}: lacks {len(lost)} of the model's weights, such as {lost[0]}; it is damaged")
    if base is not None:
        adapter.open_adapter(model, folder)
        load_weights(model, folder)
    return model


def load_state(checkpoint: Path, name: str = "state.pt") -> State:
    """Read a file of plain values and tensors; a pickle that would run code is refused.

    The tensors are parts of the mapped file: the page cache holds them, once for all ranks of a machine. What outlives
    the start of a training is a copy, since the file may be removed.

    Raises:
        CheckpointError: the file cannot be read, or holds no state.
    """
    try:
        # Older versions of torch wrote a format that cannot be mapped.
        mapped = zipfile.is_zipfile(checkpoint / name)
        state = torch.load(checkpoint / name, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0][:200] or type(error).__name__
        raise CheckpointError(f"{checkpoint / name}: cannot be read: {reason}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{checkpoint / name}: holds no state")
    return state


def load_weights(model: torch.nn.Module, folder: Path) -> WeightsReport:
    """Load saved weights into a model; CheckpointError if they are missing, unknown or of another shape."""
    return fill(model, stored_tensors(folder.glob("*.safetensors")), folder)


def fill(
    model: torch.nn.Module,
    weights: Mapping[str, torch.Tensor | StoredTensor],
    where: Path | None,
    new_parts: Collection[str] = (),
    remedy: str = "resume with the config and dataset that it was trained with",
) -> WeightsReport:
    """Copy weights into a model, of a sharded one this rank's rows, one tensor at a time.

    A wrapper's prefix in all names is left out, and so are constants that older versions of `transformers` stored.

    Args:
        new_parts: first words of the names of weights that are not stored.
        remedy: the next step, for the message.

    Raises:
        CheckpointError: some are missing, unknown, not finite or of another shape; the message names `where`.
    """
    own = saved_weights(model)
    new = tuple(name for name in own if name.partition(".")[0] in new_parts)
    own = {name: weight for name, weight in own.items() if name not in new}
    fitting = () if weights.keys() <= own.keys() else Renaming.between(weights, own)
    renaming = fitting[0] if len(fitting) == 1 else Renaming()
    weights = {renaming(name): weight for name, weight in weights.items()}
    buffers = {name.rpartition(".")[2] for name, _ in model.named_buffers()}
    left_out = [name for name in weights if name not in own and _is_constant(name, weights[name], buffers)]
    present = {id(own[name]) for name in weights if name in own}
    missing = [name for name in own if name not in weights and id(own[name]) not in present]
    unknown = [name for name in weights if name not in own and name not in left_out]
    problems = [f"{name} is missing" for name in missing] + [f"{name} is not part of this model" for name in unknown]
    problems += [
        f"{name} is {tuple(tensor.shape)}, not {tuple(own[name].shape)}"
        for name, tensor in weights.items()
        if name in own and tuple(tensor.shape) != tuple(own[name].shape)
    ]
    if problems:
        both = [*(f"; {unknown[0]} is not part of this model" for _ in missing[:1] if unknown)]
        raise CheckpointError(
            f"{where}: its weights are of another model ({len(problems)} differences; {problems[0]}{''.join(both)}); "
            f"{remedy}"
        )
    for name in (name for name in weights if name in own):
        part = own_rows_of(own[name], weights[name])
        if not torch.isfinite(part).all():
            raise CheckpointError(f"{where}: weights are not finite ({name}); resume from an earlier checkpoint")
        with torch.no_grad():
            own_part(own[name]).copy_(part)
    num_weights = len({id(weight) for weight in own.values()}) + len(new)
    return WeightsReport(str(where), num_weights, new, tuple(left_out), renaming=renaming)


def _is_constant(name: str, value: torch.Tensor | StoredTensor, buffers: Collection[str]) -> bool:
    """Whether a tensor that a model lacks is no weight, but positions or a mask that older versions stored."""
    is_number = isinstance(value, torch.Tensor) and not (value.is_floating_point() and value.ndim)
    return is_number or name.rpartition(".")[2] in buffers
