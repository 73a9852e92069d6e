"""The command line: `nbtools COMMAND`, or `python -m nbtools COMMAND`.

Exit codes: 0 done, 1 the run failed or is lost, 2 the call was wrong, 130 stopped or interrupted; `wait --timeout`
gives 124 while the run still goes on, as `timeout` does. Everything heavy is imported by the command that needs it.
"""

import argparse
import contextlib
import io
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from nbtools import __version__
from nbtools.errors import CheckpointError, ConfigError, FormatError, NbtoolsError, ProjectError, RunFailed

if TYPE_CHECKING:
    from nbtools.config import TrainConfig
    from nbtools.run import Run

DONE, FAILED, WRONG_CALL, STILL_RUNNING, INTERRUPTED = 0, 1, 2, 124, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    own, script_args = words, []
    if words[:1] in (["launch"], ["resume"]) and "--" in words:
        end = words.index("--")
        own, script_args = words[:end], words[end + 1 :]
    if sys.stdout is None:  # closed by whoever called
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - for as long as the process lives
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a log may hold what an ASCII terminal cannot show
    try:
        arguments = _parser().parse_args(own)
        arguments.script_args = script_args
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            warnings.simplefilter("always", UserWarning)
            code: int = arguments.command(arguments)
        sys.stdout.flush()
        return code
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains once more while closing
        return DONE if isinstance(error, BrokenPipeError) else _complain(str(error))  # `| head` has seen enough
    except KeyboardInterrupt:
        return INTERRUPTED
    except RunFailed as error:
        return _complain(str(error), FAILED)
    except NbtoolsError as error:
        return _complain(str(error), WRONG_CALL)


def _complain(message: str, code: int = WRONG_CALL) -> int:
    from nbtools.tail import clean

    for line in message.splitlines():
        print(f"nbtools: {clean(line.encode(errors='backslashreplace'))}", file=sys.stderr)
    return code


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    _complain(f"warning: {message}")


# --- arguments ------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        message = " ".join(message[:400].splitlines()) + ("…" if len(message) > 400 else "")
        if message.startswith("unrecognized arguments"):
            message += " (a script's own arguments go after --)"
        raise SystemExit(_complain(f"{message}; see {self.prog} --help"))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="nbtools", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"nbtools {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    run, as_json, settings, recipe = (_Parser(add_help=False) for _ in range(4))
    run.add_argument("run", metavar="RUN", help="a run's id, a unique prefix of it, latest, or its folder")
    as_json.add_argument("--json", action="store_true")
    settings.add_argument(
        "--nproc-per-node", "--nproc_per_node", type=int, metavar="N", help="processes on this machine"
    )
    settings.add_argument("--gpus", type=_gpus, metavar="0,1|none", help="GPU indices, or none for the CPU")
    recipe.add_argument("recipe", nargs="?", metavar="RECIPE")

    def command(function: Callable[[argparse.Namespace], int], help: str, *parents: _Parser) -> argparse.ArgumentParser:
        name = function.__name__.removeprefix("_")
        added = commands.add_parser(name, help=help, description=help, parents=parents)
        added.set_defaults(command=function)
        return added

    command(_recipes, "List the recipes, or the fields of one.", recipe)
    command(_presets, "List the presets.", recipe)

    new = command(_new, "Write scripts/NAME.py and print its path.", settings)
    new.add_argument("recipe", metavar="RECIPE")
    new.add_argument("name", metavar="NAME")
    new.add_argument("--preset", help="start from these values instead of the defaults")
    new.add_argument("--set", dest="values", action="append", default=[], metavar="FIELD=VALUE", help="may be repeated")
    new.add_argument("--force", action="store_true", help="replace a script that says something else")

    launch = command(
        _launch, "Start a script in the background, print the run's id; its arguments go after --.", settings
    )
    launch.add_argument("script", metavar="SCRIPT")
    launch.add_argument("--after", metavar="RUN", help="wait until that run has ended, however it ends")
    launch.add_argument("--no-queue", action="store_true", help="share GPUs with runs that were launched before")
    launch.add_argument(
        "--max-restarts", "--max_restarts", type=int, metavar="N", help="start a failed run again, from its checkpoint"
    )

    command(_runs, "List the runs, newest first.", as_json)
    command(_show, "Tell what a run is doing and how it ended.", run, as_json)

    log = command(_log, "Print the end of rank 0's log.", run)
    log.add_argument("-n", dest="num_lines", type=_at_least_one, default=50, metavar="N", help="lines (default: 50)")
    log.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")

    watch = command(_watch, "Show progress until the run ends; interrupting leaves the run alone.", run)
    watch.add_argument("--refresh", dest="refresh_s", type=_seconds, default=1.0, metavar="SECONDS")

    plot = command(_plot, "Draw a run's curves to a picture.", run)
    plot.add_argument("-o", "--output", required=True, metavar="FILE.png")
    plot.add_argument("--dark", action="store_true", help="light lines on a dark background")
    plot.add_argument("--log", action="store_true", help="logarithmic vertical axes")
    plot.add_argument("--x", choices=("step", "samples", "time"), default="step", help="horizontal axis")

    command(_stop, "Stop a run: it saves a checkpoint and ends.", run)

    resume = command(_resume, "Go on from a checkpoint in a new run, print its id; arguments go after --.", run)
    resume.add_argument("--checkpoint", metavar="step-000200", help="default: the newest one that is whole")

    wait = command(_wait, "Wait until a run ends; the exit code tells how.", run)
    wait.add_argument("--timeout", dest="timeout_s", type=_seconds, metavar="SECONDS")

    doctor = command(_doctor, "Check this machine and print what an issue report needs.", as_json)
    doctor.add_argument("--all-reduce", action="store_true", help="also run a collective on two processes")
    return parser


def _gpus(text: str) -> tuple[int, ...]:
    if text.strip().lower() in ("none", ""):
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:80]!r}: give indices such as 0,1, or none") from None


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= (seconds := float(text)) < 1e9:
            return seconds
    raise argparse.ArgumentTypeError(f"{text[:80]!r}: give a number of seconds")


def _at_least_one(text: str) -> int:
    if text.isdecimal() and (number := int(text[:9])) >= 1:
        return number
    raise argparse.ArgumentTypeError(f"{text[:80]!r}: give a number of at least 1")


# --- recipes and scripts --------------------------------------------------------------------------


def _recipes(arguments: argparse.Namespace) -> int:
    from nbtools.recipes import RECIPES, recipe_named
    from nbtools.terminal import print_table

    if arguments.recipe is None:
        print_table([(recipe.key, recipe.title, recipe.summary) for recipe in RECIPES.values()])
        return DONE
    cls = recipe_named(arguments.recipe).config_class
    print_table(
        (name, repr(field.default), cls.unit(name), field.description or "") for name, field in cls.model_fields.items()
    )
    return DONE


def _presets(arguments: argparse.Namespace) -> int:
    from nbtools.recipes import RECIPES, recipe_named

    recipes = RECIPES.values() if arguments.recipe is None else [recipe_named(arguments.recipe)]
    for recipe in recipes:
        print(f"{recipe.key}: {recipe.title}")
        for name, preset in recipe.presets.items():
            print(f"  {name}: {preset.description}; nproc_per_node={preset.nproc_per_node}")
            print(f"    {' '.join(f'{field}={value}' for field, value in preset.values.items())}")
    return DONE


def _new(arguments: argparse.Namespace) -> int:
    from nbtools.config import Launch
    from nbtools.recipes import recipe_named
    from nbtools.script import write_script

    recipe = recipe_named(arguments.recipe)
    if arguments.preset is None:
        config, launch = recipe.config_class(), Launch()
    else:
        config, launch = recipe.preset(arguments.preset)
    changes = dict(_assignment(text, type(config)) for text in arguments.values)
    config = config.replace(**changes)
    overrides = {name: getattr(arguments, name) for name in ("nproc_per_node", "gpus")}
    launch = launch.replace(**{name: value for name, value in overrides.items() if value is not None})
    print(_shortest(write_script(config, arguments.name, launch, overwrite=arguments.force)))
    return DONE


def _assignment(text: str, cls: "type[TrainConfig]") -> tuple[str, Any]:
    """Read FIELD=VALUE: text fields take VALUE as it is, others as a Python literal; None where that is allowed."""
    import ast

    name, sign, value = text.partition("=")
    name = name.replace("-", "_")
    if not sign:
        raise ConfigError(f"--set {text[:80]!r}: has no '='; write --set FIELD=VALUE")
    if value in ("None", "none"):
        return name, None
    if name not in cls.model_fields or "str" in str(cls.model_fields[name].annotation):
        return name, value
    try:
        return name, ast.literal_eval({"true": "True", "false": "False"}.get(value, value))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return name, value  # the validation says what is wrong with it


def _shortest(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


# --- runs -----------------------------------------------------------------------------------------


def _named(arguments: argparse.Namespace) -> "Run":
    from nbtools.run import Run

    return Run(arguments.run)


def _launch(arguments: argparse.Namespace) -> int:
    from nbtools.launch import launch
    from nbtools.project import find_project

    run = launch(
        arguments.script,
        nproc_per_node=arguments.nproc_per_node,
        gpus=arguments.gpus,
        args=tuple(arguments.script_args),
        max_restarts=arguments.max_restarts,
        after=arguments.after,
        queue=not arguments.no_queue,
    )
    print(run.id)
    if waiting_for := run.waiting_for:
        print(f"nbtools: queued {waiting_for}", file=sys.stderr)
    with contextlib.suppress(ProjectError):
        if find_project().runs.resolve() == run.dir.parent:
            return DONE
    print(f"nbtools: this folder is of another project, so call the run by its path: {run.dir}", file=sys.stderr)
    return DONE


def _resume(arguments: argparse.Namespace) -> int:
    from nbtools.launch import resume

    run = _named(arguments)
    saved = {checkpoint.name: checkpoint for checkpoint in run.checkpoints}
    if arguments.checkpoint is not None and arguments.checkpoint not in saved:
        raise CheckpointError(
            f"{run.id}: has no checkpoint {arguments.checkpoint[:80]!r}; it has {', '.join(saved) or 'none'}"
        )
    print(resume(run, saved.get(arguments.checkpoint), args=tuple(arguments.script_args)).id)
    return DONE


def _runs(arguments: argparse.Namespace) -> int:
    from nbtools.listing import runs
    from nbtools.terminal import print_runs

    listed, found = runs(), []
    for run in listed:
        try:
            found.append(run.summary())
        except (FormatError, OSError) as error:  # one that cannot be read hides none of the others
            _complain(f"warning: {run.id} is left out: {error}")
    if arguments.json:
        _print_json(found)
    elif listed:
        print_runs(found)
    else:
        print("no runs yet: nbtools launch SCRIPT starts one", file=sys.stderr)
    return DONE


def _show(arguments: argparse.Namespace) -> int:
    from nbtools.terminal import print_run

    summary = _named(arguments).summary()
    if arguments.json:
        _print_json(summary)
    else:
        print_run(summary)
    return DONE


def _log(arguments: argparse.Namespace) -> int:
    from nbtools.terminal import follow

    run = _named(arguments)
    if arguments.follow:
        follow(run, arguments.num_lines)
    elif text := run.log(arguments.num_lines):
        print(text)
    return DONE


def _watch(arguments: argparse.Namespace) -> int:
    from nbtools.terminal import watch

    run = _named(arguments)
    try:
        watch(run, arguments.refresh_s)
    except KeyboardInterrupt:
        print(f"\n{run.id} goes on; nbtools stop {run.id} ends it", file=sys.stderr)
        return INTERRUPTED
    return _verdict(run)


def _plot(arguments: argparse.Namespace) -> int:
    from nbtools.notebook.plot import save_plot

    run, path = _named(arguments), Path(arguments.output)
    try:
        save_plot(run, path, dark=arguments.dark, x=arguments.x, log=arguments.log)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be written: {getattr(error, 'strerror', error)}") from error
    print(path)
    return DONE


def _stop(arguments: argparse.Namespace) -> int:
    print(_named(arguments).stop())
    return DONE


def _wait(arguments: argparse.Namespace) -> int:
    run = _named(arguments)
    try:
        state = run.wait(arguments.timeout_s, check=False)
    except TimeoutError:
        state = run.state
    if not state.is_final:
        print(f"nbtools: {run.id} is still {state} after {arguments.timeout_s:g} s", file=sys.stderr)
        return STILL_RUNNING
    print(f"{run.id} {state}")
    return _verdict(run)


def _verdict(run: "Run") -> int:
    from nbtools.run import RunState

    state = run.state
    if state in (RunState.FAILED, RunState.LOST):
        failure = run.failure
        return _complain(str(failure.headline if failure else state), FAILED)
    return INTERRUPTED if state is RunState.STOPPED else DONE


def _doctor(arguments: argparse.Namespace) -> int:
    from nbtools import doctor

    findings = doctor.examine(all_reduce=arguments.all_reduce)
    if arguments.json:
        _print_json([finding.to_json() for finding in findings])
    else:
        for finding in findings:
            print(finding)
    return FAILED if any(finding.level == "problem" for finding in findings) else DONE


def _print_json(content: object) -> None:
    print(json.dumps(content, indent=1, allow_nan=False))


if __name__ == "__main__":
    sys.exit(main())
