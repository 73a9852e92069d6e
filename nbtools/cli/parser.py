"""The grammar of the command line: the commands and their arguments."""

import argparse
import contextlib
import shlex
import sys
import textwrap
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from shutil import get_terminal_size
from types import MappingProxyType
from typing import Any, NoReturn

from nbtools import __version__
from nbtools.errors import did_you_mean
from nbtools.rundir.tail import printable

WRONG_CALL = 2
"""Exit code of an invalid call."""
_ENDED = ("STOPPED", "SUCCEEDED", "FAILED", "LOST")
TAKE_ARGUMENTS = ("launch", "resume", "new")
"""Commands that take the arguments of a script or program after `--`."""
FORMER_NAMES = {"preflight": ["launch", "--dry-run"], "presets": ["recipes", "--presets"]}
"""Words for the former names of commands, which are not listed."""
wrapped = partial(textwrap.wrap, break_long_words=False, break_on_hyphens=False)  # so that paths can be copied


def complain(message: str, code: int = WRONG_CALL) -> int:
    """Print a message to stderr, without control characters, and return the exit code."""
    for line in message.splitlines():
        text = f"nbtools: {printable(line)}"
        if sys.stderr.isatty():
            text = "\n".join(wrapped(text, get_terminal_size().columns, subsequent_indent="  "))
        print(text, file=sys.stderr)
    return code


def shortest(path: Path) -> Path:
    """Return a path relative to the working directory, if it lies there."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


class _Parser(argparse.ArgumentParser):
    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        """Add an argument; a flag may also be written with `_` for `-`."""
        spellings = (spelling for name in names for spelling in (name, name[:2] + name[2:].replace("-", "_")))
        return super().add_argument(*dict.fromkeys(spellings), **options)

    def error(self, message: str) -> NoReturn:
        message = " ".join(message[:400].splitlines()) + ("…" if len(message) > 400 else "")
        raise SystemExit(complain(f"{message}{'' if message.endswith('?') else ';'} see {self.prog} --help"))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            advice = did_you_mean(str(value), action.choices) or f"choose from {', '.join(map(str, action.choices))}"
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}; {advice}")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; an unknown option is an error of its command, which suggests similar options."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            near = (did_you_mean(word.partition("=")[0], self._option_string_actions) for word in unknown)
            of_script = "a script's own arguments go after --" if self.get_default("verb") in TAKE_ARGUMENTS else ""
            said = f"unrecognized arguments: {' '.join(unknown)}", of_script, next(filter(None, near), "")
            self.error("; ".join(filter(None, said)))
        return found, unknown

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        if action.nargs is None and arg_strings == ["--"]:  # Python 3.11 would drop it
            self.error(f"argument {'/'.join(action.option_strings) or action.metavar}: '--' is not a value")
        return super()._get_values(action, arg_strings)


def parser(
    description: str,
    prediction_fields: Mapping[str, str] = MappingProxyType({}),
    launch_flags: Mapping[str, Mapping[str, dict[str, Any]]] = MappingProxyType({}),
) -> argparse.ArgumentParser:
    """Return the whole grammar; the attribute `verb` of its result is the name of the command.

    Args:
        prediction_fields: settings of `predict`, and what each means; empty for another command.
        launch_flags: flags of launch settings by the commands that take them; empty for another command.
    """
    parser = _Parser(prog="nbtools", description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"nbtools {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")

    run, as_json, settings, restarts, values, program, where = (_Parser(add_help=False) for _ in range(7))
    named = "id of a run, a unique prefix of it, latest, NAME (the newest one), NAME~1 (the one before), a path"
    run.add_argument("run", metavar="RUN", help=named)
    as_json.add_argument("--json", action="store_true", help="print JSON")
    parents = {"settings": settings, "restarts": restarts, "program": program, "where": where}
    for kind, flags in launch_flags.items():
        for flag, options in flags.items():
            parents[kind].add_argument(flag, **options)
    settings.add_argument("--gpus", type=_gpus, metavar="0,1|none", help="indices of the GPUs, or none for the CPU")
    text = "stop the run on nan, no_improvement, loss_above (=VALUE for another than the usual) or time_budget_h=HOURS"
    restarts.add_argument("--stop-on", action="append", metavar="CONDITION[=VALUE]", help=text)
    text = "send a notice on a condition of --stop-on, ended, failed, stalled_min=MINUTES or values='METRIC < NUMBER'"
    restarts.add_argument("--notify-on", action="append", metavar="CONDITION[=VALUE]", help=text)
    text = "value of a field; may be repeated"
    values.add_argument("--set", dest="values", action="append", default=[], metavar="FIELD=VALUE", help=text)
    text = "submit a Slurm job, or none for this machine; the flags of Slurm's settings are for a job"
    where.add_argument("--cluster", choices=("slurm", "none"), help=text)
    text = "the job ends with a preemption or at its time limit"
    where.add_argument("--no-requeue", dest="requeue", action="store_const", const=False, help=text)
    text = "the script is the name of a module, as for python -m"
    program.add_argument("-m", "--module", action="store_true", help=text)
    text = "start a program once, as python does: it starts its own processes"
    program.add_argument("--no-torchrun", dest="torchrun", action="store_const", const=False, help=text)

    def command(verb: str, help: str, *parents: _Parser) -> argparse.ArgumentParser:
        added = commands.add_parser(verb, description=help, help=help, parents=parents)
        added.set_defaults(verb=verb)
        return added

    listing = command("recipes", "List the recipes, or the fields of one.")
    listing.add_argument("recipe", nargs="?", metavar="RECIPE")
    listing.add_argument("--presets", action="store_true", help="list the presets instead")

    text = "Write scripts/NAME.py for a recipe or a program, and print its path; a program's arguments go after --."
    new = command("new", text, settings, where, values, program)
    new.add_argument("recipe", metavar="RECIPE|PROGRAM.py")
    new.add_argument("name", metavar="NAME")
    new.add_argument("--preset", help="use the values of this preset instead of the defaults")
    new.add_argument("--from-yaml", metavar="OLD.yaml", help="read an older program's config")
    new.add_argument("--sh", action="store_true", help="also write scripts/NAME.sh, which runs torchrun")
    text = "arguments that resume a program, such as '--resume {checkpoint}'"
    new.add_argument("--resume-with", type=shlex.split, metavar="WORDS", help=text)
    new.add_argument("--sbatch", action="store_true", help="also write scripts/NAME.sbatch, for sbatch")
    new.add_argument("--force", action="store_true", help="overwrite an existing script that differs")

    prepare = command("prepare", "Tokenize a text once, into a new folder for --data-dir.")
    text = "as a recipe's dataset: a text file, a folder of .txt files, a table, or hf/OWNER/NAME"
    prepare.add_argument("text", metavar="TEXT", help=text)
    prepare.add_argument("--out", required=True, metavar="DIR", help="the folder to create")
    text = "chars (default), words, or the folder or hub id of a model"
    prepare.add_argument("--tokenizer", default="chars", metavar="chars|words|MODEL", help=text)
    text = "none (default) keeps the text as it is; light drops lines without a letter, repeated punctuation and spaces"
    prepare.add_argument("--clean", default="none", choices=("none", "light"), help=text)
    text = "largest vocabulary that is built from the text (default: 50000)"
    prepare.add_argument("--vocab-size", type=_at_least_one, default=50_000, metavar="N", help=text)

    text = "Start a script in the background and print the id of the run; the script's own arguments go after --."
    launch = command("launch", text, settings, where, restarts, as_json, program)
    launch.add_argument("script", metavar="SCRIPT")
    text = "pattern of a program's printed lines, such as 'iter {step}: loss {train/loss}'; may be repeated"
    launch.add_argument("--curve", dest="curves", action="append", metavar="PATTERN", help=text)
    launch.add_argument("--name", help="last part of the run's id; default: the name of the script")
    launch.add_argument("--dry-run", action="store_true", help="check and describe the launch only")
    text = "SCRIPT is a run: start it once more; nbtools show then tells whether the values are equal to the bit"
    launch.add_argument("--again", action="store_true", help=text)
    text = "with --dry-run: also take a few real steps on one device, for time, memory and the largest batch that fits"
    launch.add_argument("--try", dest="try_steps", action="store_true", help=text)
    launch.add_argument("--after", metavar="RUN", help="start after that run has ended, in any state")
    text = "join the run in the directory SCRIPT, launched on another machine, as its machine N, in the foreground"
    launch.add_argument("--node", type=_at_least_one, metavar="N", help=text)
    launch.add_argument("--no-queue", action="store_true", help="start at once, beside earlier runs on the same GPUs")

    runs = command("runs", "List the newest runs.", as_json)
    runs.add_argument("-n", dest="num_runs", type=_at_least_one, default=20, metavar="N", help="runs (default: 20)")
    runs.add_argument("--all", action="store_true", help="list all runs")
    text = "the smallest loss, the greatest step or the longest duration first; default: the newest first"
    runs.add_argument("--sort", choices=("name", "loss", "step", "duration"), help=text)
    states = ("QUEUED", "RUNNING", *_ENDED)
    text = "only runs in this state; may be repeated"
    runs.add_argument("--state", dest="states", action="append", default=[], type=str.upper, choices=states, help=text)
    runs.add_argument("--name", metavar="PATTERN", help="only runs of this name; lr_* stands for several")
    runs.add_argument("--recipe", metavar="RECIPE", help="only runs of this recipe")
    show = command("show", "Show a run: state, metrics, checkpoints, failure; name, tag and note it.", run, as_json)
    text = "print the uncommitted changes that the run started with, as a patch, and nothing else"
    show.add_argument("--diff", action="store_true", help=text)
    show.add_argument("--stacks", action="store_true", help="also the Python stacks of every rank")
    show.add_argument("--media", action="store_true", help="also samples, tables and charts")
    show.add_argument("--rename", metavar="NAME", help="rename the run; an empty name restores the script's name")
    show.add_argument("--tags", metavar="A,B", help="replace the tags of the run")
    show.add_argument("--note", metavar="TEXT", help="replace the note on the run")

    log = command("log", "Print the end of rank 0's log.", run)
    log.add_argument("-n", dest="num_lines", type=_at_least_one, default=50, metavar="N", help="lines (default: 50)")
    log.add_argument("-f", "--follow", action="store_true", help="continue until the run ends")

    watch = command("watch", "Show progress until the run ends; Ctrl-C ends the display, not the run.", run)
    watch.add_argument("--refresh", dest="refresh_s", type=_seconds, default=1.0, metavar="SECONDS")

    text = "Draw the curves of a run, or of several over each other, as a PNG; or write a report to send, as HTML."
    plot = command("plot", text)
    text = "ids, names, unique prefixes, latest or run directories; or patterns such as 'lr_*' for names and ids"
    plot.add_argument("runs", nargs="+", metavar="RUN", help=text)
    plot.add_argument("--split", default="", metavar="FIELD", help="several runs: charts for each value of a field")
    plot.add_argument("-o", "--output", required=True, metavar="FILE", help="FILE.png, or FILE.html for a report")
    text = "report: with uncommitted changes, paths and names of hosts"
    plot.add_argument("--details", action="store_true", help=text)
    plot.add_argument("--log", action="store_true", help="logarithmic vertical axes")
    plot.add_argument("--x", choices=("step", "samples", "time", "relative"), default="step", help="horizontal axis")

    steer = command("steer", "Change a running training: after the same step on all ranks, and on record.", run)
    text = "save, evaluate, pause, continue, profile; or new values, such as learning_rate=5e-4 and max_steps=2000"
    steer.add_argument("asked", nargs="+", metavar="ACTION|FIELD=VALUE", help=text)
    text = "how long to wait for the answer, which comes after the current step (default: 10)"
    steer.add_argument("--timeout", dest="timeout_s", type=_seconds, default=10.0, metavar="SECONDS", help=text)

    stop = command("stop", "Stop runs, the newest first; a recipe saves a checkpoint, a program gets its stop signal.")
    stop.add_argument("runs", nargs="+", metavar="RUN", help=named)
    text = "kill what remains after this time; default: the seconds that the launch grants, and 10"
    stop.add_argument("--timeout", dest="timeout_s", type=_seconds, metavar="SECONDS", help=text)

    text = "Resume a run as a new run and print its id; --set changes values (a fork); arguments go after --."
    resume = command("resume", text, run, settings, where, restarts, values)
    resume.add_argument("--checkpoint", metavar="step-000200", help="default: the newest that verifies; or a path")
    text = "show the checkpoint, and the words with which a program continues, and start nothing"
    resume.add_argument("--dry-run", action="store_true", help=text)
    resume.add_argument("--name", help="last part of the new run's id; default: the name of the run")
    text = "arguments that resume a program from {checkpoint}, a path; default: the known ones of the program"
    resume.add_argument("--resume-with", type=shlex.split, metavar="WORDS", help=text)

    text = "Write the model of a run's checkpoint, an adapter merged into it, into a folder that from_pretrained loads."
    export = command("export", text, run)
    export.add_argument("-o", dest="out", metavar="DIR", help="a new folder; default: in the run's outputs/")
    export.add_argument("--checkpoint", metavar="step-000200", help="default: the newest that verifies")
    trust = "run the Python code that comes with the model, where it has some; the run's own setting does not count"
    export.add_argument("--trust-remote-code", action="store_true", help=trust)

    text = "Use the model of a run, also while it trains: fill masks, assign codes, write."
    predict = command("predict", text, run, as_json)
    text = "a text; a .csv, .tsv, .jsonl, .json, .parquet or text file; or - for the lines of stdin"
    predict.add_argument("source", metavar="TEXT|FILE", nargs="?", help=text)
    text = "a new .csv, .tsv, .jsonl or .txt file; default: print the results"
    predict.add_argument("-o", dest="out", metavar="OUT", help=text)
    predict.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    predict.add_argument("--column", metavar="NAME", help="column with the texts; default: the training's, or text")
    predict.add_argument("--checkpoint", metavar="step-000200", help="default: the newest that verifies")
    predict.add_argument("--device", choices=("cpu", "cuda"), help="default: a GPU that no process holds, else the CPU")
    predict.add_argument("--trust-remote-code", action="store_true", help=trust)
    group = predict.add_argument_group("settings of the recipes")
    for name, text in prediction_fields.items():
        spellings = dict.fromkeys((f"--{name.replace('_', '-')}", f"--{name}"))
        group.add_argument(*spellings, dest=f"setting:{name}", metavar="VALUE", help=text.replace("%", "%%"))

    wait = command("wait", "Wait until a run ends; the exit code gives its state.", run)
    wait.add_argument("--timeout", dest="timeout_s", type=_seconds, metavar="SECONDS")

    clean = command("clean", "Remove ended runs, checkpoints or the cache, after a list and a question.")
    text = "default: all that the options select; no option: disk use"
    clean.add_argument("refs", nargs="*", metavar="RUN", help=text)
    clean.add_argument("--older-than", dest="older_than_s", type=_age, metavar="30d", help="runs that ended longer ago")
    clean.add_argument("--state", dest="states", action="append", default=[], type=str.upper, choices=_ENDED)
    clean.add_argument("--checkpoints", action="store_true", help="only checkpoints; the newest and the best are kept")
    clean.add_argument("--cache", action="store_true", help="also tokenized texts and learning histories")
    clean.add_argument("--yes", action="store_true", help="remove without a question")

    doctor = command("doctor", "Check this machine; print what a bug report needs.", as_json)
    doctor.add_argument("--all-reduce", action="store_true", help="also run a collective on two processes")
    doctor.add_argument("--notify", action="store_true", help="also send a notice to the address of notify_on")
    doctor.add_argument("--gpu-tests", action="store_true", help="also run a clone's tests of GPUs, up to 10 minutes")
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


def _age(text: str) -> float:
    units_s = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
    if text[-1:] in units_s and text[:-1].isascii() and text[:-1].isdigit() and len(text) < 10:
        return float(text[:-1]) * units_s[text[-1]]
    raise argparse.ArgumentTypeError(f"{text[:80]!r}: give a number and a unit, such as 30d, 12h or 2w")


def _at_least_one(text: str) -> int:
    if text.isdecimal() and (number := int(text[:9])) >= 1:
        return number
    raise argparse.ArgumentTypeError(f"{text[:80]!r}: give a number of at least 1")
