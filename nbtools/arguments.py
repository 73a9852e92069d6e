"""The grammar of the command line: which verbs there are, and what each of them takes."""

import argparse
import contextlib
import sys
from typing import NoReturn

from nbtools import __version__
from nbtools.tail import clean

WRONG_CALL = 2
"""Exit code of a call that cannot be understood or carried out."""


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
    new.add_argument("--force", action="store_true", help="replace a script that says something else")

    launch = command(
        "launch", "Start a script in the background, print the run's id; its arguments go after --.", settings, restarts
    )
    launch.add_argument("script", metavar="SCRIPT")
    launch.add_argument("--after", metavar="RUN", help="wait until that run has ended, however it ends")
    launch.add_argument("--no-queue", action="store_true", help="share GPUs with runs that were launched before")

    command("runs", "List the runs, newest first.", as_json)
    command("show", "Tell what a run is doing and how it ended.", run, as_json)

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


def _at_least_one(text: str) -> int:
    if text.isdecimal() and (number := int(text[:9])) >= 1:
        return number
    raise argparse.ArgumentTypeError(f"{text[:80]!r}: give a number of at least 1")
