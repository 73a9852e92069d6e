"""Merges the shards of a checkpoint, or its adapters with their base models, for `nbtools export`."""

from functools import partial
from pathlib import Path

from transformers import PreTrainedModel

from nbtools.config import TrainConfig
from nbtools.launcher.resume import config_of
from nbtools.recipes import MaskedDiffusionConfig, TextClassificationConfig
from nbtools.recipes.masked_diffusion import with_consent
from nbtools.run.checkpoints import Checkpoint
from nbtools.run.run import Run
from nbtools.training.engine.checkpoint import open_model
from nbtools.training.masked_diffusion.model import load_pretrained
from nbtools.training.sharding.sharded_checkpoint import consolidate
from nbtools.training.text import adapter, pretrained_models
from nbtools.training.text_classification.model import open_classifier


def merge_parts(run: Run, trust_remote_code: bool, checkpoint: Checkpoint, folder: Path) -> None:
    """Write the models of a run's checkpoint into the empty `folder`: whole, with adapters as part of their weights.

    Args:
        trust_remote_code: run the Python code that comes with the base of an adapter, where it has some.

    Raises:
        CheckpointError: an adapter is damaged, or its base is no longer the one that it was trained on.
        ConfigError: the base cannot be loaded, or has code that may not run.
    """
    pretrained_models.be_quiet()
    saved = checkpoint.path / "model"
    config = with_consent(config_of(run), saved, trust_remote_code)
    folder.rmdir()
    consolidate(saved, folder)
    for path in folder.rglob("adapter_*"):
        path.unlink()
    adapter.check_bases(checkpoint.path, checkpoint.manifest.get("base"), adapter.bases_of(config))
    for path in saved.rglob(adapter.CONFIG):
        model = _open(config, path.parent)
        adapter.merge(model)
        model.save_pretrained(folder / path.parent.relative_to(saved))


def _open(config: TrainConfig, folder: Path) -> PreTrainedModel:
    if isinstance(config, TextClassificationConfig):
        return open_classifier(folder)
    if isinstance(config, MaskedDiffusionConfig):
        return open_model(folder, partial(load_pretrained, trust_remote_code=config.trust_remote_code, dropout=None))
    return open_model(folder)
