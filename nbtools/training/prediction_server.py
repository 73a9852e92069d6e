"""Answers requests with a trained model, as a child process: JSON lines in and out.

    python -m nbtools.training runs/ID/checkpoints/step-000200 --device cuda

It first writes `{"ready": {...}}`. A request is `{"id": 1, "inputs": [...], "settings": {...}}`; it gives one line
`{"id": 1, "index": 0, ...}` for each input, in order, then `{"id": 1, "done": true, "seconds": ...}`. An error is
the line `{"error": "..."}`, of a request with its id. The process ends with its stdin; what libraries print goes to
stderr.
"""

import argparse
import contextlib
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from nbtools.config import TrainConfig
from nbtools.errors import NbtoolsError, message_of
from nbtools.launcher.resume import config_of
from nbtools.recipes import recipe_of
from nbtools.recipes.masked_diffusion import with_consent
from nbtools.recipes.predict_settings import settings_of
from nbtools.run.checkpoints import Checkpoint
from nbtools.run.run import Run
from nbtools.training.outputs.outputs import whole_model
from nbtools.training.sharding.sharded_checkpoint import consolidate
from nbtools.training.text import adapter, pretrained_models


def main() -> None:
    """Load the model of a checkpoint once, then answer until stdin ends."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("checkpoint", type=Path)
    arguments.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments.add_argument("--trust-remote-code", action="store_true")
    asked = arguments.parse_args()
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

        def write(line: dict[str, Any]) -> None:
            print(json.dumps(line, allow_nan=False), file=answers, flush=True)

        pretrained_models.be_quiet()
        device = torch.device("cuda" if asked.device == "cuda" and torch.cuda.is_available() else "cpu")
        try:
            checkpoint = Checkpoint.read(asked.checkpoint.resolve())
            config = config_of(Run(checkpoint.path.parent.parent))
            defaults = settings_of(config)
            config = with_consent(config, checkpoint.path / "model", asked.trust_remote_code)
            with model_folder_of(config, checkpoint) as folder:
                module = importlib.import_module(f"{recipe_of(config).module}.predict")
                predictor = module.Predictor(folder, config, device)
        except (NbtoolsError, OSError, RuntimeError) as error:
            write({"error": _in_words(error)})
            return
        facts = {"step": checkpoint.step, "device": device.type, "parameters": predictor.num_parameters}
        write({"ready": facts})
        for line in sys.stdin:
            request = json.loads(line)
            mark, started = {"id": request["id"]}, time.perf_counter()
            try:
                settings = type(defaults)(**request["settings"])
                with torch.inference_mode():
                    for index, row in enumerate(predictor.predict(request["inputs"], settings)):
                        write({**mark, "index": index, **row})
            except (NbtoolsError, OSError, RuntimeError) as error:
                write({**mark, "error": _in_words(error)})
            else:
                write({**mark, "done": True, "seconds": time.perf_counter() - started})


@contextlib.contextmanager
def model_folder_of(config: TrainConfig, checkpoint: Checkpoint) -> Iterator[Path]:
    """Yield the folder of a checkpoint's model; shards are merged into a temporary one, unless `outputs/model` is that.

    Raises:
        CheckpointError: a shard is missing, or the base of an adapter is no longer the one that it was trained on.
    """
    adapter.check_bases(checkpoint.path, checkpoint.manifest.get("base"), adapter.bases_of(config))
    folder = checkpoint.path / "model"
    if "num_shards" in checkpoint.manifest and (folder := whole_model(checkpoint) or folder).parent == checkpoint.path:
        with tempfile.TemporaryDirectory(prefix="nbtools-") as temporary:
            consolidate(folder, Path(temporary) / "model")
            yield Path(temporary) / "model"
    else:
        yield folder


def _in_words(error: BaseException) -> str:
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "the GPU has too little free memory for this; use the CPU (--device cpu), or smaller batches"
    return message_of(error)
