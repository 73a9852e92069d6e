"""The start of a training on record: config.json for programs, a report in the log for people."""

import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from nbtools.data import hub
from nbtools.recipes import recipe_of
from nbtools.rundir.json_files import write_json
from nbtools.rundir.rundir import RunDir
from nbtools.steering import ACTIONS
from nbtools.training.engine.flags import Flags
from nbtools.training.engine.plan import Plan
from nbtools.training.engine.precision import warning
from nbtools.training.engine.standalone import own_attempt, own_project
from nbtools.training.process.ranks import Ranks

_RULE = "=" * 60
_WEIGHTS = {"model_name": "weights", "judge_name": "judge's weights", "resume_from": "resumed weights"}


def write_startup_report(
    files: RunDir, flags: Flags[Any], precision: str, ranks: Ranks, plan: Plan, derived: Mapping[str, Any]
) -> str:
    """Write config.json, with the values `derived` by the recipe, and return the same for a reader as text (rank 0).

    The config is recorded as it was asked for; `precision` is what an `auto` in it is here.
    """
    recipe = recipe_of(flags.config)
    config, device, world = flags.config, ranks.device, ranks.world_size
    environment = {
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "backend": ranks.backend,
        "precision": precision,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
    }
    models = filter(None, (getattr(config, field, None) for field in ("model_name", "judge_name")))
    commits = {name: hub.cached_commit(name, "config.json") for name in models} | derived.get("hub_commits", {})
    commits = {name: commit for name, commit in commits.items() if commit is not None}
    derived = {**asdict(plan.schedule), "world_size": world, "total_steps": plan.total_steps, **derived}
    for name in ("hub_commits", "note"):  # the log has the recipe's own notes
        derived.pop(name, None)
    derived |= {"hub_commits": commits} if commits else {}
    weights = {field: report.to_json() for field, report in derived.pop("weights", {}).items()}
    if "resume_from" not in weights and getattr(config, "model_name", "") is None:
        note = "random, since model_name is None; --model-name NAME starts from a pretrained model instead"
        weights["model_name"] = {"note": note}
    content = {
        "recipe": recipe.key,
        "config": config.model_dump(mode="json"),
        "overridden": list(flags.overridden),
        "derived": derived,
        "weights": weights,
        "environment": environment,
    }
    write_json(files.config, content)
    values = {name: getattr(config, name) for name in sorted(config.steerable(), key=lambda name: "rate" not in name)}
    write_json(files.controls, {"actions": ACTIONS, "values": values})
    source = recipe.source(config, own_project().root)
    launch = getattr(sys.modules["__main__"], "launch", None)
    asked = getattr(launch, "nproc_per_node", world)
    asked = asked if asked == "gpu" else asked * getattr(launch, "nnodes", 1)
    processes = f"process{'es' if world > 1 else ''}"
    lines = {
        "processes": (f"{world}, backend {ranks.backend}" if world > 1 else "1")
        + ", sharded (fsdp)" * (config.strategy == "fsdp")
        + ("" if asked in (world, "gpu") else f" (the script asks for {asked})"),
        "devices": f"{environment['device_name']}, {environment['threads']} threads per process",
        "precision": precision + f" ({config.precision})" * (precision != config.precision),
        "batch": f"{config.batch_size} per process x {config.gradient_accumulation_steps} accumulated x {world} "
        f"{processes} = {derived['effective_batch']} samples per step",
        "steps": f"{derived['total_steps']:,} ({derived['steps_per_epoch']:,} per epoch)",
        "parameters": f"{derived['num_parameters']:,}"
        + (f", of which {derived['num_trained_parameters']:,} train" if "num_trained_parameters" in derived else ""),
        **{_WEIGHTS[field]: str(report["note"]) for field, report in weights.items()},
        "vocabulary": f"{derived['vocab_size']:,}" if "vocab_size" in derived else "",
        "dataset": f"{source.name}: {derived['num_train_samples']:,} training samples, {plan.schedule.held_out}",
        "run": str(files.path),
        "save directory": config.save_dir or "",
        "resumed from": str(flags.resume_from or ""),
        "attempt": str(own_attempt()) if own_attempt() > 1 else "",
        "changed by flags": ", ".join(flags.overridden),
    }
    rows = [f"{name:<17}{text}" for name, text in lines.items() if text]
    warned = warning(device, precision)
    return "\n".join([_RULE, f"{recipe.key}: {files.id}", _RULE, *rows, _RULE, *([warned] if warned else [])])
