"""The grammar of the command line: the commands and their arguments."""

import argparse
import contextlib
import sys
from typing import Any, NoReturn

from nbtools import __version__
from nbtools.rundir.tail import terminal_text

WRONG_CALL = 2
"""Exit code of an invalid call."""
_ENDED = ("STOPPED", "SUCCEEDED", "FAILED", "LOST")


def complain(message: str, code: int = WRONG_CALL) -> int:
    """Print a message to stderr, without control characters, and return the exit code."""
    for line in message.splitlines():
        print(f"nbtools: {terminal_text(line.encode(errors='backslashreplace'))}", file=sys.stderr)
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
            self.error(f"argument {'/'.join(action.option_strings) or action.metavar}: '--' is not a value")
        return value


def parser(description: str) -> argparse.ArgumentParser:
    """Return the whole grammar; the attribute `verb` of its result is the name of the command."""
    parser = _Parser(prog="nbtools", description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"nbtools {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    run, as_json, settings, restarts, values, recipe, script = (_Parser(add_help=False) for _ in range(7))
    run.add_argument("run", metavar="RUN", help="the id of a run, a unique prefix of it, latest, or the run directory")
    as_json.add_argument("--json", action="store_true", help="print JSON")
    text = "processes on this machine, or gpu for one per GPU"
    settings.add_argument("--nproc-per-node", "--nproc_per_node", type=_processes, metavar="N|gpu", help=text)
    settings.add_argument("--gpus", type=_gpus, metavar="0,1|none", help="indices of the GPUs, or none for the CPU")
    text = "restart a failed run at most N times"
    restarts.add_argument("--max-restarts", "--max_restarts", type=int, metavar="N", help=text)
    text = "value of a field; may be repeated"
    values.add_argument("--set", dest="values", action="append", default=[], metavar="FIELD=VALUE", help=text)
    recipe.add_argument("recipe", nargs="?", metavar="RECIPE")
    script.add_argument("script", metavar="SCRIPT")

    def command(verb: str, help: str, *parents: _Parser, alias_of: str = "") -> argparse.ArgumentParser:
        listed: dict[str, Any] = {} if alias_of else {"help": help}  # a command without help is not listed
        added = commands.add_parser(verb, description=help, parents=parents, **listed)
        added.set_defaults(verb=alias_of or verb)
        return added

    listing = command("recipes", "List the recipes, or the fields of one.", recipe)
    listing.add_argument("--presets", action="store_true", help="list the presets instead")
    command("presets", "List the presets.", recipe, alias_of="recipes").set_defaults(presets=True)

    new = command("new", "Write scripts/NAME.py and print its path.", settings, values)
    new.add_argument("recipe", metavar="RECIPE")
    new.add_argument("name", metavar="NAME")
    new.add_argument("--preset", help="use the values of this preset instead of the defaults")
    new.add_argument("--from-yaml", "--from_yaml", metavar="OLD.yaml", help="read an older program's config")
    new.add_argument("--sh", action="store_true", help="also write scripts/NAME.sh, which runs torchrun")
    new.add_argument("--force", action="store_true", help="overwrite an existing script that differs")

    prepare = command("prepare", "Tokenize a text once, into a new folder for --data-dir.")
    source = prepare.add_mutually_exclusive_group(required=True)
    source.add_argument("text", metavar="TEXT", nargs="?", help="a text file or a folder of .txt files")
    text = "a data_dir folder of an older program, whose text is put together again and split again"
    source.add_argument("--from-old", "--from_old", metavar="DIR", help=text)
    prepare.add_argument("--out", required=True, metavar="DIR", help="the folder to create")
    text = "chars (default), words, or the folder or hub id of a model"
    prepare.add_argument("--tokenizer", default="chars", metavar="chars|words|MODEL", help=text)
    text = "none (default) keeps the text as it is; light drops lines without a letter, repeated punctuation and spaces"
    prepare.add_argument("--clean", default="none", choices=("none", "light"), help=text)
    text = "largest vocabulary that is built from the text (default: 50000)"
    prepare.add_argument("--vocab-size", "--vocab_size", type=_at_least_one, default=50_000, metavar="N", help=text)

    text = "Start a script in the background and print the id of the run; the script's own arguments go after --."
    launch = command("launch", text, settings, restarts, as_json, script)
    launch.add_argument("--dry-run", "--dry_run", action="store_true", help="check and describe the launch only")
    launch.add_argument("--after", metavar="RUN", help="start when that run has ended, in whatever state")
    launch.add_argument("--no-queue", action="store_true", help="start at once, beside earlier runs on the same GPUs")

    text = "Check and describe a launch; the script's own arguments go after --."
    preflight = command("preflight", text, settings, restarts, as_json, script, alias_of="launch")
    preflight.set_defaults(dry_run=True)

    runs = command("runs", "List the newest runs.", as_json)
    runs.add_argument("-n", dest="num_runs", type=_at_least_one, default=20, metavar="N", help="runs (default: 20)")
    runs.add_argument("--all", action="store_true", help="list all runs")
    states = ("QUEUED", "RUNNING", *_ENDED)
    text = "only runs in this state; may be repeated"
    runs.add_argument("--state", dest="states", action="append", default=[], type=str.upper, choices=states, help=text)
    show = command("show", "Show the state of a run, its metrics, checkpoints and failure.", run, as_json)
    show.add_argument("--stacks", action="store_true", help="also the Python stacks of every rank")
    show.add_argument("--media", action="store_true", help="also samples, tables and charts")
    show.add_argument("--exhibits", dest="media", action="store_true", help=argparse.SUPPRESS)  # former name

    log = command("log", "Print the end of rank 0's log.", run)
    log.add_argument("-n", dest="num_lines", type=_at_least_one, default=50, metavar="N", help="lines (default: 50)")
    log.add_argument("-f", "--follow", action="store_true", help="continue until the run ends")

    watch = command("watch", "Show progress until the run ends; Ctrl-C ends the display, not the run.", run)
    watch.add_argument("--refresh", dest="refresh_s", type=_seconds, default=1.0, metavar="SECONDS")

    plot = command("plot", "Draw the curves of a run into a PNG file.", run)
    plot.add_argument("-o", "--output", required=True, metavar="FILE.png")
    plot.add_argument("--dark", action="store_true", help="light lines on a dark background")
    plot.add_argument("--log", action="store_true", help="logarithmic vertical axes")
    plot.add_argument("--x", choices=("step", "samples", "time"), default="step", help="horizontal axis")

    command("stop", "Stop a run; it saves a checkpoint first.", run)

    text = "Resume a run as a new run and print its id; --set changes values (a fork); arguments go after --."
    resume = command("resume", text, run, settings, restarts, values)
    resume.add_argument("--checkpoint", metavar="step-000200", help="default: the newest that verifies")

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
    return parser


def _processes(text: str) -> int | str:
    try:
        return text if text == "gpu" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:80]!r}: give a number, or gpu for one per GPU") from None


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
