"""Continue a run in a new one: resumed, or forked with changed values and a new script; or start it once more."""

import contextlib
import itertools
import math
import re
import shlex
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from nbtools.config import COMMANDS, Launch, NotifyOn, Slurm, TrainConfig
from nbtools.errors import CheckpointError, ConfigError, DataError, LaunchError, NbtoolsError, ScriptError, shown
from nbtools.launcher.checks.step_count import Schedule, moved_rate, rate_settings, schedule
from nbtools.launcher.launch import start
from nbtools.launcher.preflight import check_launch
from nbtools.launcher.programs.next_attempt import resuming
from nbtools.launcher.programs.program_resume import (
    ProgramResume,
    lineage,
    newest_saved,
    planned_resume,
    program_again,
    remember,
    verified,
)
from nbtools.launcher.recipe_checks import with_flags
from nbtools.launcher.request import LaunchRequest, Preflight, ResumeSettings, run_name, spelled_out
from nbtools.launcher.sbatch import on_cluster
from nbtools.machine.devices import devices
from nbtools.parsing import literal_value
from nbtools.project import NAME_PATTERN, Project, file_digest, located
from nbtools.recipes import RECIPES, recipe_of
from nbtools.run.checkpoints import AnyCheckpoint, Checkpoint, newest_verified, steered_values
from nbtools.run.compare import not_as, world_size
from nbtools.run.records import mapping_at, recorded_arguments
from nbtools.run.removal.clean import in_use
from nbtools.run.run import Run
from nbtools.run.state import unsaved
from nbtools.rundir import secret_values
from nbtools.rundir.json_files import whole
from nbtools.rundir.program_files.foreign_checkpoints import ForeignCheckpoint
from nbtools.rundir.requests.conditions import NONE_SET, NOTIFY_ON, conditions_of
from nbtools.rundir.rundir import foreign_owner, has_recipe, is_run, project_of
from nbtools.script.compat.aliases import assigned
from nbtools.script.script import differences, parse_script, write_script

_NOT_OF_FORK = "omp_num_threads", "name"
"""Settings of a run that the script of its fork does not get."""


@spelled_out
def resume(
    run: Run | str | Path,
    checkpoint: AnyCheckpoint | Path | str | int | None = None,
    *,
    resume_with: Sequence[str] | None = None,
    changes: Mapping[str, object] | None = None,
    args: Sequence[str] = (),
    **settings: Unpack[ResumeSettings],
) -> Run:
    """Continue a run in a new one and join their curves.

    Without changes the same script runs with the same arguments, and the weights are bit-identical to an uninterrupted
    run's, on a GPU with `deterministic=True` only. With changes the run is a fork: its values, changed, are written to
    a new script beside the old one.

    A program of the user's runs with its recorded interpreter, working directory and arguments, and the words that
    resume it: those of its `Program.resume`, else the argument whose name says that it resumes.

    Args:
        run: the run to continue; it must have ended.
        checkpoint: where to start from: a step, a name such as `step-000200`, a folder, or a `Checkpoint`; None for the
            latest verified one of the run, else of the runs that it resumed. Of a program any file or folder may be
            given.
        resume_with: words that resume a program, such as `("--resume", "{checkpoint}")`; `{checkpoint}` stands for a
            path. They replace the same argument, and are remembered by the run and by its launcher script.
        changes: config fields and their new values, such as `{"learning_rate": 1e-4, "max_steps": 2000}`.
        nproc_per_node: processes on this machine, or `gpu` for one per GPU; None for the run's own number. The samples
            keep their order.
        gpus: GPU indices; `()` for the CPU; None for the run's own.
        nnodes, cluster, max_restarts, stop_on, notify_on: as for `launch`; None for the run's own, as changed since.
        on_end, notify_with: as for `launch`; never the run's own, which would execute words from a run directory.
        args: further arguments of the script; they come last and override earlier ones. With them a program is a fork.
        name: last part of the new run's id; None for the run's name, or for a fork's script's if the run was not named.

    Raises:
        CheckpointError: the given checkpoint is missing, incomplete or damaged.
        ConfigError: a change names no field, has a value that is not allowed, or changes the model's shape.
        LaunchError: the run has no steps left, no checkpoint to resume, or cannot start; nothing is left behind.
    """
    parent = run if isinstance(run, Run) else Run(run)
    if not (state := parent.state).is_final:
        raise LaunchError(f"{parent.id} is {state}: stop it first, then resume")
    if not has_recipe(parent.files):
        if isinstance(checkpoint, Checkpoint):
            raise CheckpointError(f"{checkpoint.path}: is a recipe's checkpoint, and {parent.id} runs a program")
        if changes:
            raise _no_fields(parent, list(changes))
        planned = planned_resume(parent, checkpoint, resume_with, args)
        where = "" if resume_with is None else remember(parent, resume=tuple(resume_with))
        if where.startswith("remembered;"):
            warnings.warn(where, stacklevel=2)
        return _started_program(parent, planned, args, _settings(parent, settings))
    if resume_with is not None or isinstance(checkpoint, ForeignCheckpoint):
        given = checkpoint if resume_with is None else shlex.join(resume_with)
        raise LaunchError(f"{parent.id}: a recipe resumes from its own checkpoints; leave {shown(given)} out")
    with _kept(parent):
        return _started(parent, checkpoint, changes or {}, args, _settings(parent, settings))


def resume_in_words(
    run: Run, checkpoint: Path | str | int | None, resume_with: Sequence[str] | None, args: Sequence[str]
) -> list[str]:
    """Return from which checkpoint `resume` would continue a run, and a program's words; errors are those of `resume`.

    Nothing is written or started.
    """
    if has_recipe(run.files):
        found, notes = _chosen(run, checkpoint)
        return [f"{run.id}: continues from {found.name}", *notes]
    planned = planned_resume(run, checkpoint, resume_with, args)
    words = shlex.join(secret_values.masked([planned.program.name, *planned.args]))
    return [f"{run.id}: continues from {planned.sentence}", words, *planned.notes]


def launch_again(run: Run) -> Run:
    """Start a run's script again, as it is now, with the same arguments and launch settings; LaunchError if the run
    belongs to another user, its script is gone, or cannot start, and nothing is left behind."""
    path = Path(str(run.info.get("script")))
    if not path.is_file():
        raise LaunchError(f"{path}: the script of {run.id} no longer exists; its copy is {run.files.script}")
    return _launched_again(run, path)


def reproduce(run: Run | str | Path) -> Run:
    """Start a run once more, so that it gives the same values to the bit: `nbtools show` then tells whether it does.

    The recorded copy of a recipe's script, the arguments, the launch settings, and the checkpoint that the run
    continued are the same; what its owner asked for while it trained is repeated at the same steps, without the pauses.
    A program runs from its own path, as it is now, without what it was asked for. A warning says what is not the same
    here: versions, code, variables, data.

    Raises:
        CheckpointError: the checkpoint that the run continued is gone or damaged.
        LaunchError: the run is active, belongs to another user, its script is gone or was changed, or it cannot start.
    """
    parent = run if isinstance(run, Run) else Run(run)
    if not (state := parent.state).is_final:
        raise LaunchError(f"{parent.id} is {state}: it can be started once more when it has ended")
    path = parent.files.script if has_recipe(parent.files) else Path(str(parent.info.get("script")))
    if not path.is_file():
        raise LaunchError(f"{path}: the script of {parent.id} no longer exists; restore it")
    if has_recipe(parent.files) and file_digest(path) != parent.info.get("script_sha256"):
        raise LaunchError(f"{path}: is not the copy that {parent.id} ran; launch a script of your own")
    resumed = mapping_at(parent.info, "resumed_from")
    with _kept(parent):
        if has_recipe(parent.files) and resumed:
            named_checkpoint(parent, str(resumed.get("checkpoint")))
        child = _launched_again(parent, path, reproduces=parent.files)
    if unlike := [*not_as(parent, child), *_other_gpu(parent), *_newer_data(parent)]:
        warnings.warn(f"not as {parent.id}, so values may differ: {'; '.join(unlike)}", stacklevel=2)
    return child


@contextlib.contextmanager
def _kept(run: Run) -> Iterator[None]:
    """Prevent that `nbtools clean` removes a run, or one that it resumed, while its checkpoint is read."""
    with contextlib.ExitStack() as kept:
        for needed, _ in lineage(run):
            kept.enter_context(in_use(needed.files))
        yield


def _other_gpu(run: Run) -> list[str]:
    """Return the GPU that a run has had, if this machine lacks it: the new run records its own after its start only.

    [] on a cluster, whose machines are not known here.
    """
    had, here = mapping_at(run.config or {}, "environment"), {each.name for each in devices()}
    is_local = not mapping_at(run.info, "launch").get("cluster")
    is_other = str(had.get("device")).startswith("cuda") and had.get("device_name") not in here
    return [f"machine.device_name {shown(had.get('device_name'))} -> {shown(sorted(here))}"] * (is_local and is_other)


def _newer_data(run: Run) -> list[str]:
    """Return the files of a run's data that were changed after its start; [] where that is not known."""
    began, root = run.records.began_at, Path(str(run.info.get("root")))
    with contextlib.suppress(NbtoolsError, OSError):
        config = config_of(run)
        files = recipe_of(config).source(config, root).files
        return [f"{file} was changed since" for file in files if began is not None and file.stat().st_mtime > began]
    return []


def _launched_again(run: Run, path: Path, **more: Any) -> Run:
    if owner := foreign_owner(run.dir):
        raise LaunchError(f"{run.id}: belongs to {owner}; launch a script of your own")
    script, args = (path, _args_of(run)) if has_recipe(run.files) else program_again(run, _args_of(run))
    recorded = str(run.info.get("script"))
    more |= {"project": Project(Path(str(run.info.get("root") or path.parent))), "runs": run.dir.parent}
    request = LaunchRequest.of(script, _settings(run, {}), args=args, recorded_script=recorded, **more)
    return start(check_launch(request), mapping_at(run.info, "resumed_from") or None)


def _started_program(parent: Run, planned: ProgramResume, args: Sequence[str], settings: dict[str, Any]) -> Run:
    argv = parent.info.get("argv")
    if settings["python"] is None and settings["cluster"] == "none" and isinstance(argv, list) and argv:
        settings["python"] = str(argv[0])
    script = str(parent.info.get("script"))
    more: dict[str, Any] = {"project": planned.project, "runs": parent.dir.parent, "recorded_script": script}
    checked = check_launch(LaunchRequest.of(planned.program, settings, args=planned.args, **more))
    for note in planned.notes:
        warnings.warn(note, stacklevel=3)
    before, after = mapping_at(parent.info, "launch").get("nproc_per_node"), checked.launch.nproc_per_node
    changes = {} if after == before else {"nproc_per_node": [before, after]}
    changes |= {"arguments": ["", shlex.join(secret_values.masked(args))]} if args else {}
    origin = {"run": parent.id, **planned.checkpoint.origin} | ({"changes": changes} if changes else {})
    return start(checked, origin)


def _started(
    parent: Run,
    ref: Checkpoint | Path | str | int | None,
    changes: Mapping[str, object],
    args: Sequence[str],
    settings: Mapping[str, Any],
) -> Run:
    """Start the new run of a recipe with the old script or the fork's, which is removed if that is impossible.

    LaunchError if the code of a model would run because a run of another user says so.
    """
    found, notes = _chosen(parent, ref)
    forked, more = _forked(parent, found, changes, settings)
    own = resuming([] if forked else _args_of(parent), found.path, steered=forked is None)
    has_copy = parent.info.get("recipe") and parent.files.script.is_file()  # of a plain script
    script = forked or (parent.files.script if has_copy else Path(str(parent.info.get("script"))))
    recorded = str(forked or parent.info.get("script"))
    request = LaunchRequest.of(script, settings, args=[*own, *args], runs=parent.dir.parent, recorded_script=recorded)
    try:
        checked = check_launch(request)
        named = {*changes, *(arg.lstrip("-").replace("-", "_") for arg in args)}
        owner = None if "trust_remote_code" in named else foreign_owner(parent.dir)
        if owner and getattr(checked.config, "trust_remote_code", False):
            raise LaunchError(
                f"{parent.id}: belongs to {owner}, and would run Python code that comes with its model; if you trust "
                "it, say so in this call: --set trust_remote_code=true (changes={'trust_remote_code': True})"
            )
        before, after = None, checked.config
        with contextlib.suppress(NbtoolsError):  # the script computes its values, and the run ended before config.json
            before = _config_at(parent, found)
        differing, others = _changes(parent, found, before, checked)
        for note in [*notes, *more, *others]:
            warnings.warn(note, stacklevel=3)
        origin: dict[str, Any] = {"run": parent.id, "checkpoint": found.name, "step": found.step}
        origin |= {"changes": differing} if differing else {}
        # The value is as before: the training then accepts that the files have another content.
        kept = [name for name in changes if name not in differing and after and name in recipe_of(after).data_fields]
        origin |= {"named": kept} if kept else {}
        return start(checked, origin)
    except BaseException:
        if forked is not None:
            forked.unlink(missing_ok=True)
        raise


def config_of(run: Run) -> TrainConfig:
    """Return the config of a run, with its flags applied; NbtoolsError if the run's script has no recipe, or computes
    its values."""
    known = run.config or {}
    recipe, values = known.get("recipe") or run.info.get("recipe"), known.get("config")
    if isinstance(recipe, str) and recipe in RECIPES and isinstance(values, dict):
        return RECIPES[recipe].config_class.recorded(values)
    path = run.files.script
    return with_flags(parse_script(path), resuming(_args_of(run), path)[:-2], run.dir)


def _config_at(run: Run, checkpoint: Checkpoint) -> TrainConfig:
    """Return the config of a run as it was at a checkpoint: with the values that were changed while it ran."""
    return config_of(run).replace(**steered_values(checkpoint.path))


def read_changes(run: Run, texts: Iterable[str]) -> dict[str, Any]:
    """Read texts such as `learning_rate=1e-4` as changes to a run's config; `changed` validates them; NbtoolsError if
    one has no `=`, or the run has no config."""
    if not has_recipe(run.files):
        raise _no_fields(run, list(texts))
    return assigned(type(config_of(run)), texts)


def steered_changes(run: Run, texts: Iterable[str]) -> dict[str, Any]:
    """Read texts such as `learning_rate=1e-4` as new values of a running training, and those such as
    `notify_on.stalled_min=10` as conditions; values of a program are literals."""
    texts = list(texts)
    own = [text for text in texts if not text.startswith(NOTIFY_ON)]
    conditions = assigned(NotifyOn, (text.removeprefix(NOTIFY_ON) for text in texts if text not in own))
    pairs = (text.partition("=") for text in own)
    is_recipe = has_recipe(run.files)
    values = read_changes(run, own) if is_recipe else {name: literal_value(text, text) for name, _, text in pairs}
    checked = NotifyOn(**conditions).model_dump(include={*conditions})
    return {**values, "notify_on": checked} if conditions else values


def _no_fields(run: Run, given: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"{', '.join(map(shown, given))}: {run.id} runs a program, which has arguments and no fields; "
        "give them as args=['--lr', '1e-4'] (after -- on the command line)"
    )


def changed(run: Run, changes: Mapping[str, object]) -> TrainConfig:
    """Return a run's config with some values changed, all of which fit its checkpoints; NbtoolsError if a field is
    unknown, a value is not allowed or changes the model's shape, or the run has no config."""
    before = config_of(run)
    after = before.replace(**before.uncapped(changes)[0])
    _check_fits(run, before, after)
    return after


# --- the run and its checkpoint -------------------------------------------------------------------


def _args_of(run: Run) -> list[str]:
    return recorded_arguments(secret_values.restored(run.files, run.info))


def _chosen(parent: Run, ref: Checkpoint | Path | str | int | None) -> tuple[Checkpoint, list[str]]:
    """Return the named checkpoint, else the latest verified one, and notes for the user."""
    if ref is not None:
        return named_checkpoint(parent, ref), []
    return newest_saved(parent, lambda run, up_to: newest_verified(run.files.checkpoints, up_to))


def named_checkpoint(parent: Run, ref: Checkpoint | Path | str | int) -> Checkpoint:
    """Find and verify a checkpoint by its step, name or folder; it belongs to the run or to one that it resumed."""
    found = ref if isinstance(ref, Checkpoint) else _read(parent, ref)
    owner = found.path.resolve().parent.parent
    if is_run(owner) and owner not in [run.dir.resolve() for run, _ in lineage(parent)]:
        raise CheckpointError(f"{found.path}: belongs to a run that {parent.id} did not resume; resume {owner.name}")
    return verified(found)


def checkpoint_for(run: Run, ref: str | int | None, purpose: str) -> Checkpoint:
    """Find and verify a checkpoint by its step or name; None for the latest verified one of this run alone; LaunchError
    if it has none for the `purpose`."""
    if ref is not None:
        return named_checkpoint(run, ref)
    if lost := unsaved(run.records):
        warnings.warn(f"{run.id}: {lost}", stacklevel=3)
    newest, reasons = newest_verified(run.files.checkpoints)
    if newest is None:
        why = "; ".join(reasons) or "it has saved none yet"
        raise LaunchError(f"{run.id}: no checkpoint to {purpose} ({why}); nbtools show {run.id} lists them")
    return newest


def _read(parent: Run, ref: Path | str | int) -> Checkpoint:
    if isinstance(ref, Path) or "/" in str(ref):
        return Checkpoint.read(located(str(ref)))
    if step := re.fullmatch(r"(?:step-)?([0-9]{1,18})", str(ref)):
        for run, up_to in lineage(parent):
            path = run.files.checkpoint(int(step[1]))
            if path.is_dir() and (up_to is None or int(step[1]) <= up_to):
                return Checkpoint.read(path)
    names = ", ".join(checkpoint.name for checkpoint in parent.checkpoints) or "none"
    raise CheckpointError(f"{parent.id}: has no checkpoint {shown(ref)}; it has {names}")


# --- what changes ---------------------------------------------------------------------------------


def _settings(parent: Run, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run's launch settings and its name, with the values that the caller has asked for."""
    recorded, wanted = mapping_at(parent.info, "launch"), {k: value for k, value in asked.items() if value is not None}
    settings: dict[str, Any] = {name: recorded.get(name) for name in Launch.model_fields}
    settings |= dict.fromkeys(COMMANDS)
    if (in_force := conditions_of(parent.files)) != {**NONE_SET, **mapping_at(recorded, "notify_on")}:
        settings["notify_on"] = in_force
    if foreign_owner(parent.dir):
        settings["python"] = None  # another user could have chosen the file
    if isinstance(settings["cluster"], dict):
        settings["cluster"] = Slurm.recorded(settings["cluster"])
    if (cluster := wanted.pop("cluster", None)) is not None:
        known = {name: value for name, value in settings.items() if value is not None}
        settings = dict(on_cluster(Launch(**known), cluster))
    if settings["cluster"] is None and recorded:
        settings["cluster"] = "none"  # the run's value replaces the script's
    if (number := wanted.get("nproc_per_node", settings["nproc_per_node"])) != settings["nproc_per_node"]:
        settings["omp_num_threads"] = None  # the cores are divided again
        if settings["gpus"]:
            is_fewer = number != "gpu" and number <= len(settings["gpus"])
            settings["gpus"] = settings["gpus"][:number] if is_fewer else None
    return {"name": run_name(parent.name), **settings, **wanted}


def _check_fits(run: Run, before: TrainConfig, after: TrainConfig) -> None:
    wrong = [change for change in differences(before, after) if type(after).shapes_model(change[0])]
    if wrong:
        given = ", ".join(f"{name}={shown(new)}" for name, _, new in wrong)
        fixed = ", ".join(f"{name}={shown(old)}" for name, old, _ in wrong)
        raise ConfigError(
            f"{given}: the checkpoints of {run.id} are of a model with {fixed}, and resuming keeps the model; "
            "leave it as it is, or train another model from the start with a script of its own"
        )


def _changes(
    parent: Run, found: Checkpoint, before: TrainConfig | None, checked: Preflight
) -> tuple[dict[str, list[Any]], list[str]]:
    """Compare the new run with the old one; return the differences as pairs of old and new, and notes for the user.

    Raises:
        ConfigError: the model's shape differs.
        LaunchError: no steps are left.
    """
    after, world = checked.config, checked.launch.world_size
    world_before = whole(found.manifest.get("world_size")) or world_size(parent) or world
    changes = {} if world == world_before else {"nproc_per_node": [world_before, world]}
    if before is None or after is None:
        return changes, []
    _check_fits(parent, before, after)
    left = _steps_left(found, after, _plan(parent, before, after, world, checked.project))
    _check_work_left(parent, found, after, left)
    moved = _moved_rate(parent, found, after, left)
    changes = {name: [old, new] for name, old, new in differences(before, after)} | changes
    batch = [config.effective_batch(size) for config, size in ((before, world_before), (after, world))]
    if batch[0] == batch[1]:
        return changes, moved
    passes = after.gradient_accumulation_steps * world
    keeps = "" if batch[0] % passes else f"; batch_size={batch[0] // passes} keeps {batch[0]}"
    factors = f"{after.batch_size} per process x {after.gradient_accumulation_steps} accumulated x {world} processes"
    notes = [f"{batch[1]} samples per step from here on, {batch[0]} until now ({factors}{keeps})"]
    return {**changes, "effective_batch": batch}, [*(notes if world != world_before else []), *moved]


def _plan(parent: Run, before: TrainConfig, after: TrainConfig, world: int, project: Project) -> Schedule | None:
    """Return the number of samples and steps from here on; None where only the training can count."""
    derived = mapping_at(parent.config or {}, "derived")
    train, evaluation = (whole(derived.get(name)) for name in ("num_train_samples", "num_eval_samples"))
    same_data = {name for name, _, _ in differences(before, after)} <= TrainConfig.model_fields.keys()
    try:
        if same_data and train and evaluation:
            return Schedule.of(after, world, train, evaluation)
        return schedule(after, world, root=project.root)
    except DataError as error:
        raise LaunchError(f"{parent.id}: {error}") from None


def _steps_left(found: Checkpoint, config: TrainConfig, plan: Schedule | None) -> int | None:
    """Return the steps from a checkpoint to the end of the last epoch; None where only the training can count."""
    progress = found.progress
    if plan is None or progress is None:
        return None
    progress.settle(plan.effective_batch, plan.num_train_samples)
    return progress.steps_left(plan.effective_batch, plan.num_train_samples, config.epochs)


def _moved_rate(parent: Run, found: Checkpoint, after: TrainConfig, left: int | None) -> list[str]:
    """Return a note if the learning rate after a checkpoint is another one than before it; [] where it is unknown."""
    owner = next((run for run, _ in lineage(parent) if run.dir == found.path.parent.parent), parent)
    total = steered_values(found.path).get("max_steps")
    total = total or whole(mapping_at(owner.config or {}, "derived").get("total_steps"))
    if not total or left is None or "warmup_learning_rate" in type(after).model_fields:  # a schedule per stage
        return []
    end = min(found.step + left, after.max_steps or sys.maxsize)
    note = moved_rate(rate_settings(_config_at(owner, found), total), rate_settings(after, end), found.step)
    return [note] if note else []


def _check_work_left(parent: Run, found: Checkpoint, config: TrainConfig, left: int | None) -> None:
    if config.max_steps is not None and found.step >= config.max_steps:
        end, field, more = f"max_steps={config.max_steps}", "max_steps", 2 * found.step
    elif left == 0:
        end, field, more = f"epochs={config.epochs}", "epochs", 2 * config.epochs
    else:
        return
    raise LaunchError(
        f"{parent.id}: nothing is left to do, {found.name} is the end of {end}; to train longer, resume with "
        f"--set {field}={more} (changes={{'{field}': {more}}}), or start from an earlier checkpoint"
    )


# --- the script of a fork -------------------------------------------------------------------------


def _forked(
    parent: Run, found: Checkpoint, changes: Mapping[str, object], settings: Mapping[str, Any]
) -> tuple[Path | None, list[str]]:
    """Write the script of a fork if any value differs; return its path and notes for the user."""
    before = _config_at(parent, found) if changes else None
    if before is None or (after := before.replace(**before.uncapped(changes)[0])) == before:
        return None, []
    _check_fits(parent, before, after)
    try:
        plain = parse_script(parent.files.script)
    except ScriptError as error:
        raise LaunchError(
            f"{error}. Its values cannot be changed in a copy of the script: pass them as flags "
            "(args=['--learning-rate', '1e-4'], or after --)"
        ) from None
    kept = {name: value for name, value in settings.items() if value is not None and name not in _NOT_OF_FORK}
    kept |= {name: settings[name] or () for name in COMMANDS}  # the words of the parent's script are not the caller's
    launch = on_cluster(plain.launch, kept.pop("cluster", None), **kept)
    project = project_of(parent.files.script)
    notes = [*before.uncapped(changes)[1]]
    if "max_steps" in changes and "epochs" not in changes:
        plan = _plan(parent, before, after, launch.resolved(len(devices())).world_size, project)
        left = _steps_left(found, after, plan)
        if plan and left is not None and after.max_steps is not None and after.max_steps > found.step + left:
            missing = after.max_steps - found.step - left
            epochs = after.epochs + math.ceil(missing / plan.steps_per_epoch)
            notes = [f"epochs {after.epochs} -> {epochs}: max_steps={after.max_steps} needs as many"]
            after = after.replace(epochs=epochs)
    return _new_script(project, Path(str(parent.info.get("script"))).stem, after, launch), notes


def _new_script(project: Project, name: str, config: TrainConfig, launch: Launch) -> Path:
    """Write `scripts/NAME_2.py`, or the next free number; two forks at once get one each."""
    stem = re.sub(r"_[0-9]+$", "", name)[:50]
    stem = stem if NAME_PATTERN.fullmatch(stem) else "fork"
    try:
        project.scripts.mkdir(exist_ok=True)
        for number in itertools.count(2):
            path = project.script(f"{stem}_{number}")
            with contextlib.suppress(FileExistsError):
                path.touch(exist_ok=False)
                break
    except OSError as error:
        raise LaunchError(
            f"{project.scripts}: the script of the fork cannot be written: {error.strerror}; make the folder writable, "
            "or resume without changes and give the values as flags (args=['--learning-rate', '1e-4'], or after --)"
        ) from None
    try:
        return write_script(config, path.stem, launch, project=project, overwrite=True)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
