"""The grammar of the command line: which verbs there are, and what each of them takes."""

import argparse
import contextlib
import sys
from typing import Any, NoReturn

from nbtools import __version__
from nbtools.rundir.tail import clean

WRONG_CALL = 2
"""Exit code of a call that cannot be understood or carried out."""
_ENDED = ("STOPPED", "SUCCEEDED", "FAILED", "LOST")


def complain(message: str, code: int = WRONG_CALL) -> int:
    """Print a message, made harmless, to stderr, and return the exit code."""
    for line in message.splitlines():
        print(f"nbtools: {clean(line.encode(errors='backslashreplace'))}", file=sys.stderr)
    return code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        message = " ".join(message[:400].splitlines()) + ("…" if len(message) > 400 else "")
        if message.startswith("unrecognized arguments"):
            message += " (a script's own arguments go after --)"
        raise SystemExit(complain(f"{message}; see {self.prog} --help"))

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        value = super()._get_values(action, arg_strings)
        if action.nargs is None and isinstance(value, list):  # Python 3.11 drops a value that is "--"
            self.error(f"argument {'/'.join(action.option_strings) or action.metavar}: '--' is no value")
        return value


def parser(description: str) -> argparse.ArgumentParser:
    """The whole grammar; `verb` is the name of the command."""
    parser = _Parser(prog="nbtools", description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"nbtools {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    run, as_json, settings, restarts, values, recipe = (_Parser(add_help=False) for _ in range(6))
    run.add_argument("run", metavar="RUN", help="a run's id, a unique prefix of it, latest, or its folder")
    as_json.add_argument("--json", action="store_true")
    settings.add_argument(
        "--nproc-per-node", "--nproc_per_node", type=int, metavar="N", help="processes on this machine"
    )
    settings.add_argument("--gpus", type=_gpus, metavar="0,1|none", help="GPU indices, or none for the CPU")
    restarts.add_argument(
        "--max-restarts", "--max_restarts", type=int, metavar="N", help="start a failed run again, from its checkpoint"
    )
    values.add_argument(
        "--set", dest="values", action="append", default=[], metavar="FIELD=VALUE", help="a value; may be repeated"
    )
    recipe.add_argument("recipe", nargs="?", metavar="RECIPE")

    def command(verb: str, help: str, *parents: _Parser) -> argparse.ArgumentParser:
        added = commands.add_parser(verb, help=help, description=help, parents=parents)
        added.set_defaults(verb=verb)
        return added

    command("recipes", "List the recipes, or the fields of one.", recipe)
    command("presets", "List the presets.", recipe)

    new = command("new", "Write scripts/NAME.py and print its path.", settings, values)
    new.add_argument("recipe", metavar="RECIPE")
    new.add_argument("name", metavar="NAME")
    new.add_argument("--preset", help="start from these values instead of the defaults")
    new.add_argument("--from-yaml", "--from_yaml", metavar="OLD.yaml", help="values of an older program's config")
    new.add_argument("--sh", action="store_true", help="also write scripts/NAME.sh, which runs it with torchrun")
    new.add_argument("--force", action="store_true", help="replace a script that says something else")

    said = "Turn a text into token ids once and for all, in a new folder that --data-dir takes."
    prepare = command("prepare", said)
    prepare.add_argument("text", metavar="TEXT", help="a text file or a folder of .txt files")
    prepare.add_argument("--out", required=True, metavar="DIR", help="the folder to make")
    said = "chars (the default), words, or the folder or hub id of a model"
    prepare.add_argument("--tokenizer", default="chars", metavar="chars|words|MODEL", help=said)
    said = "largest size of a vocabulary that is built on the text (default: 50000)"
    prepare.add_argument("--vocab-size", "--vocab_size", type=_at_least_one, default=50_000, metavar="N", help=said)

    launch = command(
        "launch", "Start a script in the background, print the run's id; its arguments go after --.", settings, restarts
    )
    launch.add_argument("script", metavar="SCRIPT")
    launch.add_argument("--after", metavar="RUN", help="wait until that run has ended, however it ends")
    launch.add_argument("--no-queue", action="store_true", help="share GPUs with runs that were launched before")

    said = "Check what a launch would do, and print it; the script's own arguments go after --."
    preflight = command("preflight", said, settings, restarts, as_json)
    preflight.add_argument("script", metavar="SCRIPT")

    command("runs", "List the runs, newest first.", as_json)
    show = command("show", "Tell what a run is doing and how it ended.", run, as_json)
    show.add_argument("--stacks", action="store_true", help="also where every rank is in its code, without stopping it")
    show.add_argument("--media", action="store_true", help="also samples, tables and charts")
    show.add_argument("--exhibits", dest="media", action="store_true", help=argparse.SUPPRESS)  # its name until 0.1

    log = command("log", "Print the end of rank 0's log.", run)
    log.add_argument("-n", dest="num_lines", type=_at_least_one, default=50, metavar="N", help="lines (default: 50)")
    log.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")

    watch = command("watch", "Show progress until the run ends; interrupting leaves the run alone.", run)
    watch.add_argument("--refresh", dest="refresh_s", type=_seconds, default=1.0, metavar="SECONDS")

    plot = command("plot", "Draw a run's curves to a picture.", run)
    plot.add_argument("-o", "--output", required=True, metavar="FILE.png")
    plot.add_argument("--dark", action="store_true", help="light lines on a dark background")
    plot.add_argument("--log", action="store_true", help="logarithmic vertical axes")
    plot.add_argument("--x", choices=("step", "samples", "time"), default="step", help="horizontal axis")

    command("stop", "Stop a run: it saves a checkpoint and ends.", run)

    said = "Go on from a checkpoint in a new run, print its id; with --set in a new script; arguments go after --."
    resume = command("resume", said, run, settings, restarts, values)
    resume.add_argument("--checkpoint", metavar="step-000200", help="default: the newest one that is whole")

    wait = command("wait", "Wait until a run ends; the exit code tells how.", run)
    wait.add_argument("--timeout", dest="timeout_s", type=_seconds, metavar="SECONDS")

    clean = command("clean", "List what may go of the runs that have ended, ask, and remove it.")
    clean.add_argument("refs", nargs="*", metavar="RUN", help="default: every run that fits; no option at all: a list")
    clean.add_argument("--older-than", dest="older_than_s", type=_age, metavar="30d", help="ended so long ago")
    clean.add_argument("--state", dest="states", action="append", default=[], type=str.upper, choices=_ENDED)
    clean.add_argument("--checkpoints", action="store_true", help="only checkpoints; the newest and the best stay")
    clean.add_argument("--cache", action="store_true", help="the cache of tokenized texts and learning histories")
    clean.add_argument("--yes", action="store_true", help="do not ask")

    doctor = command("doctor", "Check this machine and print what an issue report needs.", as_json)
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


def _age(text: str) -> float:
    units_s = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
    if text[-1:] in units_s and text[:-1].isascii() and text[:-1].isdigit() and len(text) < 10:
        return float(text[:-1]) * units_s[text[-1]]
    raise argparse.ArgumentTypeError(f"{text[:80]!r}: give a number and a unit, such as 30d, 12h or 2w")


def _at_least_one(text: str) -> int:
    if text.isdecimal() and (number := int(text[:9])) >= 1:
        return number
    raise argparse.ArgumentTypeError(f"{text[:80]!r}: give a number of at least 1")
