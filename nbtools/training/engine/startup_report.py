"""What a training says about itself before its first step: config.json for programs, a banner for people."""

import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from nbtools.recipes import recipe_of
from nbtools.rundir.json_files import write_json
from nbtools.training.engine import precision_check
from nbtools.training.process import launchers

if TYPE_CHECKING:
    from nbtools.training.engine.plan import Plan
    from nbtools.training.engine.worker import Worker

_RULE = "=" * 60


def describe(worker: "Worker", plan: "Plan", derived: Mapping[str, Any]) -> None:
    """Write config.json and print the banner: what is going to run, on what (rank 0)."""
    config, world = worker.config, worker.world_size
    backend = dist.get_backend() if world > 1 else "none"
    on_gpu = worker.device.type == "cuda"
    environment = {
        "device": str(worker.device),
        "device_name": torch.cuda.get_device_name(worker.device) if on_gpu else "CPU",
        "backend": backend,
        "precision": config.precision,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
    }
    derived = {
        **asdict(plan.schedule),
        "world_size": world,
        "total_steps": plan.total_steps,
        **derived,
    }
    content = {
        "recipe": worker.recipe,
        "config": config.model_dump(mode="json"),
        "overridden": list(worker.flags.overridden),
        "derived": derived,
        "environment": environment,
    }
    write_json(worker.files.config, content)
    source = recipe_of(config).source(config, worker.project.root)
    launch = getattr(sys.modules["__main__"], "launch", None)
    asked = getattr(launch, "nproc_per_node", world)
    processes = f"process{'es' if world > 1 else ''}"
    lines = {
        "started by": launchers.name(os.environ, sys.argv[1:]),
        "processes": (f"{world}, backend {backend}" if world > 1 else "1")
        + ("" if asked == world else f" (the script's launch says {asked}; what started it wins)"),
        "devices": f"{environment['device_name']}, {environment['threads']} threads per process",
        "precision": config.precision,
        "batch": f"{config.batch_size} per process x {config.gradient_accumulation_steps} accumulated x {world} "
        f"{processes} = {derived['effective_batch']} samples per step",
        "steps": f"{derived['total_steps']:,} ({derived['steps_per_epoch']:,} per epoch)",
        "parameters": f"{derived['num_parameters']:,}",
        "vocabulary": f"{derived['vocab_size']:,}" if "vocab_size" in derived else "",
        "dataset": f"{source.name}: {derived['num_train_samples']:,} training and "
        f"{derived['num_eval_samples']:,} evaluation samples",
        "run": str(worker.files.path),
        "save directory": config.save_dir or "",
        "resumed from": str(worker.flags.resume_from or ""),
        "attempt": str(worker.attempt) if worker.attempt > 1 else "",
        "changed by flags": ", ".join(worker.flags.overridden),
    }
    rows = [f"{name:<17}{text}" for name, text in lines.items() if text]
    worker.say("\n".join([_RULE, f"{content['recipe']}: {worker.files.id}", _RULE, *rows, _RULE]))
    if text := precision_check.warning(worker.device, config.precision):
        worker.say(text)
