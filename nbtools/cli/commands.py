"""The command line: `nbtools COMMAND`, or `python -m nbtools COMMAND`.

Exit codes: 0 done, 1 the run failed or is lost, 2 the call was wrong, 130 stopped or interrupted; `wait --timeout`
gives 124 if the run has not ended, as `timeout` does.
"""

import argparse
import contextlib
import io
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtools.cli.parser import FORMER_NAMES, TAKE_ARGUMENTS, WRONG_CALL, complain, parser, shortest
from nbtools.errors import ConfigError, NbtoolsError, ProjectError, RunFailed, plural, shown
from nbtools.project import expanded, find_project, lost_target
from nbtools.rundir.tail import one_line, printable

if TYPE_CHECKING:
    from nbtools.launcher.request import Preflight
    from nbtools.launcher.sbatch import Cluster
    from nbtools.launcher.trial.result import TrialResult
    from nbtools.run.run import Run

DONE, FAILED, STILL_RUNNING, INTERRUPTED = 0, 1, 124, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    words[:1] = FORMER_NAMES.get(words[0], words[:1]) if words else []
    own, script_args = words, []
    if words and words[0] in TAKE_ARGUMENTS and "--" in words:
        end = words.index("--")
        own, script_args = words[:end], words[end + 1 :]
    if sys.stdout is None:  # closed by the caller
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - stays open until the process exits
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for an ASCII terminal
    try:
        arguments = _parser_for(own).parse_args(own)
        arguments.script_args = script_args
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            warnings.simplefilter("always", UserWarning)
            code = VERBS[arguments.verb](arguments) if "verb" in arguments else _overview()
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as error:
        return complain(str(error), INTERRUPTED)
    except RunFailed as error:
        return complain(str(error), FAILED)
    except NbtoolsError as error:
        return complain(str(error), WRONG_CALL)
    except OSError as error:
        with contextlib.suppress(io.UnsupportedOperation):  # a stream without a descriptor
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python reports the error again at exit
        return DONE if isinstance(error, BrokenPipeError) else complain(str(error))  # `nbtools log RUN | head`


def _parser_for(words: Sequence[str]) -> argparse.ArgumentParser:
    """Return the grammar; the fields of settings, whose import takes a moment, are read for the commands with them."""
    if words[:1] == ["predict"]:
        from nbtools.cli.predictions import prediction_fields

        return parser(__doc__, prediction_fields())
    if words and words[0] in TAKE_ARGUMENTS:
        from nbtools.cli.field_flags import launch_flags

        return parser(__doc__, launch_flags=launch_flags())
    return parser(__doc__)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    complain(f"warning: {message}")


def _overview() -> int:
    from nbtools.cli.overview import print_overview

    print_overview()
    _tell_removed()
    return DONE


# --- recipes and scripts --------------------------------------------------------------------------


def _recipes(arguments: argparse.Namespace) -> int:
    from nbtools.cli.output import print_table
    from nbtools.cli.presets import print_presets
    from nbtools.recipes import RECIPES, recipe_named

    if arguments.presets:
        for recipe in RECIPES.values() if arguments.recipe is None else [recipe_named(arguments.recipe)]:
            print_presets(recipe)
        return DONE
    if arguments.recipe is None:
        print_table([(recipe.key, recipe.title, recipe.summary) for recipe in RECIPES.values()])
        return DONE
    cls = recipe_named(arguments.recipe).config_class
    print_table(
        (name, repr(field.default), cls.unit(name), field.description or "") for name, field in cls.model_fields.items()
    )
    return DONE


def _new(arguments: argparse.Namespace) -> int:
    from nbtools.cli.new import write_launcher_script, write_recipe_script
    from nbtools.recipes import RECIPES

    is_program = arguments.module or (arguments.recipe not in RECIPES and arguments.recipe.endswith(".py"))
    write = write_launcher_script if is_program else write_recipe_script
    return write(arguments, _cluster(arguments))


def _cluster(arguments: argparse.Namespace) -> "Cluster | None":
    """Return the cluster that the options name; None without such options."""
    from nbtools.config import Slurm
    from nbtools.launcher.sbatch import SlurmFlags

    given = {name: getattr(arguments, name) for name in Slurm.model_fields}
    values = {name: value for name, value in given.items() if value is not None}
    if arguments.cluster == "none":
        if values:
            raise ConfigError(f"--cluster none: is this machine, and {next(iter(values))} is for Slurm; leave one out")
        return "none"
    return SlurmFlags(values, is_asked=arguments.cluster == "slurm") if values or arguments.cluster else None


def _conditions(given: list[str] | None) -> dict[str, Any] | None:
    """Return the conditions that a call gives; a name alone means the usual value."""
    from nbtools.config import NotifyOn
    from nbtools.script.compat.aliases import assigned

    return assigned(NotifyOn, [text if "=" in text else f"{text}=True" for text in given]) if given else None


def _launch_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that `launch` and `resume` have in common."""
    names = ("nproc_per_node", "gpus", "nnodes", "max_restarts", "on_end", "notify_with")
    settings = {name: getattr(arguments, name) for name in names}
    settings |= {name: _conditions(getattr(arguments, name)) for name in ("stop_on", "notify_on")}
    return {**settings, "cluster": _cluster(arguments), "args": tuple(arguments.script_args)}


def _prepare(arguments: argparse.Namespace) -> int:
    from nbtools.training.masked_diffusion.dataset import prepare

    def say(text: str) -> None:
        complain(text, DONE)

    folder = expanded(arguments.out).absolute()
    options = {"vocab_size": arguments.vocab_size, "clean": arguments.clean, "say": say}
    try:
        metadata = prepare(str(expanded(arguments.text).absolute()), folder, arguments.tokenizer, **options)
    except NbtoolsError as error:
        raise type(error)(f"{shown(arguments.out)} was not created: {error}") from None
    print(
        f"{shortest(folder)}: {metadata.num_train_tokens:,} training, {metadata.num_val_tokens:,} validation and "
        f"{metadata.num_test_tokens:,} test tokens, {metadata.vocab_size:,} different ones ({metadata.tokenizer})"
    )
    return DONE


# --- runs -----------------------------------------------------------------------------------------


def _named(ref: str) -> "Run":
    from nbtools.run.run import Run

    return Run(ref)


def _launch(arguments: argparse.Namespace) -> int:
    from nbtools.cli.output import print_findings
    from nbtools.launcher.launch import launch_request
    from nbtools.launcher.preflight import help_text, preflight
    from nbtools.launcher.request import LaunchRequest
    from nbtools.script.program import Program

    given = [name for name, value in vars(arguments).items() if value and name not in ("verb", "script")]
    if arguments.node is not None:
        from nbtools.launcher.node import run_node

        if others := [name for name in given if name not in ("node", "gpus")]:
            return complain(f"--node: goes with --gpus only, not with {others[0]}; the run has the other settings")
        return FAILED if run_node(arguments.script, arguments.node, gpus=arguments.gpus) else DONE
    if arguments.again:
        from nbtools.launcher.resume import reproduce  # numpy takes a quarter of a second

        if others := [name for name in given if name != "again"]:
            return complain(f"--again: goes with no other option, and {others[0]} is given; the run has its settings")
        return _print_started(reproduce(arguments.script))
    own = ("torchrun", "python", "cwd", "stop_signal", "curves", "name")
    options = _launch_settings(arguments) | {name: getattr(arguments, name) for name in own}
    if arguments.json and not arguments.dry_run:
        return complain("--json: goes with --dry-run; nbtools show RUN --json describes a launched run")
    if arguments.try_steps and not arguments.dry_run:
        return complain("--try: goes with --dry-run, since a launch takes all steps")
    script: str | Program = Program(module=arguments.script) if arguments.module else arguments.script
    if not arguments.module and (flags := help_text(arguments.script, options["args"])) is not None:
        print(flags, end="")
        return DONE
    if not arguments.dry_run:
        args = options.pop("args")
        request = LaunchRequest.of(script, options, args=args, queue=not arguments.no_queue)
        return _print_started(launch_request(request, arguments.after))
    if arguments.after is not None:
        _named(arguments.after)  # an error if there is no such run
    checked = preflight(script, **options)
    if not arguments.json:
        print_findings(checked.findings, checked.title)
    tried = _tried(checked) if arguments.try_steps and not checked.problems else None
    if arguments.json:
        _print_json([asdict(finding) for finding in (*checked.findings, *(tried.findings if tried else ()))])
    elif tried:
        print_findings(tried.findings)
    if checked.problems:
        return complain(checked.problems[0] if arguments.json else checked.title)
    return FAILED if tried and tried.error else DONE


def _tried(checked: "Preflight") -> "TrialResult":
    from nbtools.launcher.trial.trial import start_trial

    if checked.config is None:
        raise ConfigError(f"{checked.script.name}: --try is for the scripts of recipes; leave it out")
    sys.stdout.flush()  # the findings first, since the trial takes seconds
    trial = start_trial(checked.config, checked.launch, root=checked.project.root)
    try:
        found = trial.wait()
        assert found is not None
        return found
    finally:
        trial.cancel()  # after Ctrl-C


def _print_started(run: "Run") -> int:
    from nbtools.run.state import RunState, waiting_for

    print(one_line(run.id))
    for node, command in enumerate(run.info.get("join") or (), start=1):
        print(f"# on machine {node}:\n{command}", file=sys.stderr)
    if run.state is RunState.QUEUED and (blocker := waiting_for(run.records)):
        complain(f"queued {blocker}")
    with contextlib.suppress(ProjectError):
        if find_project().runs.resolve() == run.dir.parent:
            return DONE
    return complain(f"the run is not in the project of this folder; refer to it by its path: {run.dir}", DONE)


def _resume(arguments: argparse.Namespace) -> int:
    from nbtools.launcher.resume import read_changes, resume, resume_in_words

    parent = _named(arguments.run)
    if arguments.dry_run:
        lines = resume_in_words(parent, arguments.checkpoint, arguments.resume_with, arguments.script_args)
        print("\n".join(printable(line) for line in lines))
        return DONE
    run = resume(
        parent,
        arguments.checkpoint,
        resume_with=arguments.resume_with,
        name=arguments.name,
        changes=read_changes(parent, arguments.values) if arguments.values else None,
        **_launch_settings(arguments),
    )
    if (script := run.info.get("script")) != parent.info.get("script"):
        complain(f"wrote {shortest(Path(str(script)))}")
    return _print_started(run)


def _export(arguments: argparse.Namespace) -> int:
    from nbtools.cli.export import export

    def merge(run: Any, *checkpoint: Any) -> None:
        from nbtools.training.merge_checkpoint import merge_parts  # imports torch

        merge_parts(run, arguments.trust_remote_code, *checkpoint)

    print(shortest(export(_named(arguments.run), arguments.out, arguments.checkpoint, merge)))
    return DONE


def _predict(arguments: argparse.Namespace) -> int:
    from nbtools.cli.predictions import predict

    report = predict(_named(arguments.run), arguments)
    if report.num_failed:
        complain(f"{report.num_failed:,} of {plural(report.num_rows, 'row')} could not be read:")
        for problem in report.problems:
            complain(f"  {problem}")
    if report.num_noted:
        complain(f"note: {report.num_noted:,} of {plural(report.num_rows, 'row')} cut to what the model reads")
    return FAILED if report.num_rows and report.num_failed == report.num_rows else DONE


def _clean(arguments: argparse.Namespace) -> int:
    from nbtools.cli import clean_output
    from nbtools.run.removal import clean
    from nbtools.run.state import RunState

    runs = find_project().runs
    options = {name: getattr(arguments, name) for name in ("refs", "older_than_s", "checkpoints", "cache")}
    options["states"] = [RunState(state) for state in arguments.states]
    if all(option is None or option is False or option == [] for option in options.values()):
        clean_output.print_stored(runs)
        _tell_removed()
        return DONE
    plan = clean.plan_removal(runs, **options)
    clean_output.print_plan(plan)
    if not plan.items:
        return DONE
    if not arguments.yes:
        if not (sys.stdin and sys.stdin.isatty()):
            return complain("nothing was removed; --yes removes what is listed above")
        print("Remove all of this permanently? Type yes: ", end="", flush=True)
        if sys.stdin.readline().strip() != "yes":
            print("nothing was removed")
            return INTERRUPTED
    gone, kept = clean.remove(plan)
    clean_output.print_removed(gone, kept)
    return FAILED if kept else DONE


def _runs(arguments: argparse.Namespace) -> int:
    from nbtools.cli.output import print_runs
    from nbtools.run.listing import Rows, in_order, selected

    rows = Rows(find_project().runs.resolve())
    wanted = {name: getattr(arguments, name) for name in ("states", "name", "recipe")}
    listed = selected(rows.every() if arguments.all or arguments.sort else rows.newest(), **wanted)
    ordered = iter(in_order(map(rows.completed, listed), arguments.sort)) if arguments.sort else listed
    chosen = [*islice(ordered, None if arguments.all else arguments.num_runs)]
    is_complete, found = next(ordered, None) is None, list[Any]()
    for row in chosen:
        try:
            found.append(rows.run(row.id).summary(brief=True) if arguments.json else rows.completed(row))
        except (NbtoolsError, OSError) as error:  # the other runs are still listed
            complain(f"warning: {row.id} is left out: {error}")
    rows.save()
    _tell_removed()
    if arguments.json:
        lines = ",\n".join(json.dumps(summary, allow_nan=False) for summary in found)
        print(f"[\n{lines}\n]" if found else "[]")
    elif found:
        print_runs(found)
    elif not chosen:
        told = [f"{key} {one_line(value, 80)}" for key in ("name", "recipe") if (value := wanted.get(key))]
        told += [" or ".join(arguments.states)] if arguments.states else []
        what = f"no run is {', '.join(told)}" if told else "no runs yet: nbtools launch SCRIPT starts one"
        print(what, file=sys.stderr)
    if not is_complete:
        complain(f"the {'first' if arguments.sort else 'newest'} {len(found)}; -n N lists more, --all lists all")
    return DONE


def _tell_removed() -> None:
    """Name the runs whose directories were removed while their processes live, or the missing target of `runs/`."""
    from nbtools.machine.processes import removed_in_words, removed_runs

    with contextlib.suppress(ProjectError):
        if lost := lost_target(runs := find_project().runs):
            complain(f"{runs} links to {lost}, which does not exist: mount or make it")
        for run in removed_runs(runs):
            complain(one_line(f"{run.id}: {removed_in_words(run)}"))


def _show(arguments: argparse.Namespace) -> int:
    from nbtools.cli.output import print_media_item, print_run
    from nbtools.run.compare import reproduced
    from nbtools.rundir import media
    from nbtools.rundir.names import label

    run = _named(arguments.run)
    if not (arguments.rename is arguments.tags is arguments.note is None):
        tags = None if arguments.tags is None else [tag.strip() for tag in arguments.tags.split(",") if tag.strip()]
        label(run.files, name=arguments.rename, tags=tags, note=arguments.note)
    if arguments.diff:
        return _print_diff(run)
    summary = run.summary(stacks=arguments.stacks)
    summary |= {"again": f"nbtools launch --again {run.id}", "reproduced": reproduced(run)}
    shown = run.media if arguments.media else []
    if arguments.json:
        _print_json({**summary, "media": list(map(media.to_json, shown))} if arguments.media else summary)
        return DONE
    print_run(summary)
    for item in shown:
        print_media_item(item)
    if arguments.media and not shown:
        print("\nno samples, tables or charts")
    return DONE


def _print_diff(run: "Run") -> int:
    from nbtools.rundir.git_source import recorded_diff

    if not (diff := recorded_diff(run.files)):
        return complain(f"{run.id}: no uncommitted changes are recorded", DONE)
    if sys.stdout.isatty():
        print(printable(diff.decode(errors="replace")), end="")
    else:
        sys.stdout.buffer.write(diff)  # `git apply` takes it
    return DONE


def _log(arguments: argparse.Namespace) -> int:
    from nbtools.cli.output import follow
    from nbtools.rundir.rundir import is_removed

    run = _named(arguments.run)
    if arguments.follow:
        follow(run, arguments.num_lines)
    elif text := run.log(arguments.num_lines):
        print(text)
    if is_removed(run.files):
        return _exit_code(run)
    if not run.files.log.exists():
        complain(f"{run.id} is {run.state}, without {shortest(run.files.log)}: not written yet, removed or renamed")
    return DONE


def _watch(arguments: argparse.Namespace) -> int:
    from nbtools.cli.output import watch

    run = _named(arguments.run)
    try:
        watch(run, arguments.refresh_s)
    except KeyboardInterrupt:
        print(f"\n{one_line(f'{run.id} continues; nbtools stop {run.id} ends it')}", file=sys.stderr)
        return INTERRUPTED
    return _exit_code(run)


def _plot(arguments: argparse.Namespace) -> int:
    from nbtools.notebook.comparison.overlay import save_comparison
    from nbtools.notebook.comparison.report import report
    from nbtools.notebook.plots.figure import save_plot

    refs, path = arguments.runs, Path(arguments.output)
    options, is_one = {"x": arguments.x, "log": arguments.log}, len(refs) == 1 and not any(s in refs[0] for s in "*?[")
    is_report = path.suffix.lower() in (".html", ".htm")
    try:
        if is_one and arguments.split:
            raise ConfigError(f"--split {arguments.split}: is for several runs, and {refs[0]} is one")
        if arguments.details and not is_report:
            raise ConfigError(f"--details: is for a report, and {path} is a picture; name a file that ends in .html")
        if is_report:
            report(*refs, path=path, details=arguments.details, **options, split=arguments.split)
        elif is_one:
            save_plot(_named(refs[0]), path, **options)
        else:
            found = save_comparison(refs, path, split=arguments.split, **options)
            for note in found.notes:
                complain(one_line(note))
    except NbtoolsError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be written: {getattr(error, 'strerror', error)}") from error
    print(path)
    return DONE


def _steer(arguments: argparse.Namespace) -> int:
    from nbtools.launcher.resume import steered_changes

    run = _named(arguments.run)
    values = steered_changes(run, [word for word in arguments.asked if "=" in word])
    actions = [word for word in arguments.asked if "=" not in word]
    print(printable(run.steer(*actions, timeout_s=arguments.timeout_s, **values)))
    return DONE


def _stop(arguments: argparse.Namespace) -> int:
    from nbtools.run.slurm_job import runs_on_slurm
    from nbtools.run.stop import left_behind

    runs = [_named(ref) for ref in dict.fromkeys(arguments.runs)]
    code = DONE
    for run in sorted(runs, key=lambda run: run.id, reverse=True):  # a newer run may wait for an older one
        name = f"{run.id}: " if len(runs) > 1 else ""
        try:
            print(one_line(f"{name}{run.stop(arguments.timeout_s)}"), flush=True)
            # Slurm itself ends the last processes of a job, a moment after it.
            if not run.state.is_final or (left_behind(run.records) and not runs_on_slurm(run.records)):
                code = code or FAILED
        except NbtoolsError as error:  # the others are stopped all the same
            code = complain(str(error))
    return code


def _wait(arguments: argparse.Namespace) -> int:
    run = _named(arguments.run)
    with contextlib.suppress(TimeoutError):
        run.wait(arguments.timeout_s, check=False)
    if not (state := run.state).is_final:
        return complain(one_line(f"{run.id} is still {state} after {arguments.timeout_s:g} s"), STILL_RUNNING)
    print(one_line(f"{run.id} {state}"))
    return _exit_code(run)


def _exit_code(run: "Run") -> int:
    from nbtools.run.state import RunState

    state = run.state
    if state in (RunState.FAILED, RunState.LOST):
        failure = run.failure
        return complain("\n".join(failure.lines) if failure else str(state), FAILED)
    return INTERRUPTED if state is RunState.STOPPED else DONE


def _doctor(arguments: argparse.Namespace) -> int:
    from nbtools.cli import doctor
    from nbtools.cli.output import print_findings

    findings = doctor.doctor(all_reduce=arguments.all_reduce, notify=arguments.notify, gpu_tests=arguments.gpu_tests)
    if arguments.json:
        _print_json([asdict(finding) for finding in findings])
    else:
        print_findings(findings)
    return FAILED if any(finding.level == "problem" for finding in findings) else DONE


def _print_json(content: object) -> None:
    print(json.dumps(content, indent=1, allow_nan=False))


VERBS: dict[str, Callable[[argparse.Namespace], int]] = {
    command.__name__.removeprefix("_"): command
    for command in (
        *(_recipes, _new, _prepare, _launch, _runs, _show, _log, _watch, _plot),
        *(_steer, _stop, _resume, _export, _predict, _wait, _clean, _doctor),
    )
}
