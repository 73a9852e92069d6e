"""Exports the model of a run as a folder that `from_pretrained` loads."""

import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

from nbtools.errors import ConfigError, LaunchError, shown
from nbtools.launcher.resume import checkpoint_for, config_of
from nbtools.project import expanded
from nbtools.recipes import TextClassificationConfig, recipe_of
from nbtools.run import facts
from nbtools.run.checkpoints import Checkpoint
from nbtools.run.records import mapping_at
from nbtools.run.run import Run
from nbtools.rundir.atomic import new_folder
from nbtools.rundir.rundir import has_recipe


def export(run: Run, out: str | None, checkpoint: str | None, merge: Callable[[Run, Checkpoint, Path], None]) -> Path:
    """Write the model of a checkpoint, every byte of which is verified, into a new folder, and return the folder.

    Args:
        out: the folder; None for one of the checkpoint's name in the run's `outputs/`.
        checkpoint: a name such as `step-000200`; None for the latest verified one.
        merge: writes the model of a checkpoint with shards or adapters into the folder that it is given.

    Raises:
        CheckpointError: the checkpoint is missing or damaged.
        ConfigError: the folder exists or cannot be written.
        LaunchError: the run is a program's, or has no verified checkpoint.
    """
    if not has_recipe(run.files):
        raise LaunchError(f"{run.id}: export is for recipes, and this run's program saves its model itself")
    found = checkpoint_for(run, checkpoint, "export")
    folder = run.files.outputs / found.name if out is None else expanded(out).absolute()
    if folder.exists():
        raise ConfigError(f"{folder}: exists already; name another folder with -o, or remove it")
    saved = found.path / "model"
    try:
        with new_folder(folder) as built:
            if "num_shards" in found.manifest or any(saved.rglob("adapter_config.json")):
                merge(run, found, built)
            else:
                shutil.copytree(saved, built, dirs_exist_ok=True)
            parts = sorted(f"`{path.parent.relative_to(built)}`" for path in built.rglob("config.json"))
            loads = f"In the format of `save_pretrained`: {', '.join(parts).replace('`.`', 'this folder')}.\n"
            if isinstance(config_of(run), TextClassificationConfig):
                is_published = (built / "key.json").is_file()
                loads = "OccCANINE's own classes load it" if is_published else "from_pretrained loads its encoder alone"
                warnings.warn(f"{loads}: see README.md there for more", stacklevel=2)
                loads = _text("exported_classifier").format(loads=loads, folder=str(folder))
            (built / "README.md").write_text(_card(run, found, loads), encoding="utf-8")
    except (OSError, ValueError) as error:  # a null character is a ValueError
        raise ConfigError(f"{shown(str(folder), 300)}: cannot be written: {error}") from error
    return folder


def _card(run: Run, checkpoint: Checkpoint, loads: str) -> str:
    """Return the model card: what it was trained from and on, its scores, and the config that differs.

    Cards are published with the model, so paths have no folders.
    """
    config, curves, scores = config_of(run), run.history, {}
    for name in sorted(curves):
        found = curves[name].values[curves[name].steps == checkpoint.step]
        if name.startswith(("eval/", "test/")) and len(found):
            scores[name] = f"{found[-1]:.5g}"
    data, values = mapping_at(checkpoint.manifest, "data"), config.model_dump(mode="json", exclude_defaults=True)
    told = [f"{name} {data[name]}" for name in ("size", "rule", "digest") if data.get(name)]
    own = {name: facts.without_folders(shown(value, 200)) for name, value in values.items()}
    return _text("model_card").format(
        recipe=recipe_of(config),
        run=run,
        weights=facts.without_folders("; ".join(facts.weights(run.config).values())) or "random at the start",
        loads=loads,
        data=", ".join(told) or "Not recorded",
        step=checkpoint.step,
        seed=config.seed,
        scores=_table("metric", "value", scores),
        config=_table("field", "value", own),
    )


def _table(name: str, value: str, rows: Mapping[str, str]) -> str:
    """Return a table in Markdown."""
    cells = [(name, value), ("---", "---"), *rows.items()]
    return "\n".join(f"| {left} | {right.replace('|', '&#124;')} |" for left, right in cells)


def _text(name: str) -> str:
    return Path(__file__).with_name(f"{name}.txt").read_text(encoding="utf-8")
