"""An edit of a command line: the real parser reads the other values as before, and their words are where they were."""

import argparse
import contextlib
import io
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from nbtools.errors import ConfigError
from nbtools.script.arguments.arguments import Argument, ScriptArguments
from nbtools.script.arguments.command_line import parse_words

from asking import asked, script_of

ZOO = Path(__file__).parent / "zoo"
KNOWN = """
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("data", nargs="?", default="none")
parser.add_argument("--lr", type=float, default=0.001)
parser.add_argument("--batch-size", "-b", type=int, default=8)
parser.add_argument("--layers", type=int, nargs="+", default=[2])
parser.add_argument("--tag", action="append")
parser.add_argument("--amp", "-a", action="store_true")
parser.add_argument("--verbose", "-v", action="count", default=0)
if __name__ == "__main__":
    args, rest = parser.parse_known_args()
"""
CHUNKS = [
    *(
        ["--lr", "0.001"],
        ["--lr=1e-3"],
        ["--lr", "5e-1"],
        ["-b8"],
        ["-b", "08"],
        ["--batch=16"],
        ["--layers", "1", "2"],
    ),
    *(["--tag", "x"], ["--tag=y z"], ["-a"], ["-v"], ["-vva"], ["--unknown", "3"], ["--trainer.seed=4"], ["--flag"]),
    *(["--layers", "1", "2"], ["data/"], ["first", "second"], ["-z"], ["--", "-file"]),
]
EDITS: list[dict[str, Any]] = [
    *({"lr": 0.25}, {"lr": 0.001}, {"batch_size": 31}, {"layers": (7, 8)}, {"amp": True}, {"amp": False}),
    *({"verbose": 3}, {"verbose": 0}, {"tag": ("q",)}, {"lr": 0.125, "batch_size": 31}),
]


def known_script(folder: Path, source: str = KNOWN) -> ScriptArguments:
    path = folder / "train.py"
    path.write_text(source, encoding="utf-8")
    return asked(path)


def test_the_real_argparse_reads_all_but_the_edited_value_as_before(tmp_path: Path) -> None:
    script = known_script(tmp_path)
    parser: argparse.ArgumentParser = runpy.run_path(str(script.script))["parser"]
    num_edits = num_refused = 0

    @settings(max_examples=150, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.sampled_from(CHUNKS), max_size=6), st.sampled_from(EDITS))
    def check(chunks: list[list[str]], edit: dict[str, Any]) -> None:
        nonlocal num_edits, num_refused
        words = [word for chunk in chunks for word in chunk]
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                before, rest = parser.parse_known_args(words)
        except SystemExit:
            assume(False)
        num_edits += 1
        try:
            edited = parse_words(script, words).edited(edit)
        except ConfigError:
            num_refused += 1
            return
        after, rest_after = parser.parse_known_args(edited)
        wanted = vars(before) | {name: list(v) if isinstance(v, tuple) else v for name, v in edit.items()}
        rests = [
            [word for word in left if word != "--"] for left in (rest_after, rest)
        ]  # argparse takes one away or not
        assert (vars(after), rests[0]) == (wanted, rests[1]), (words, edited)
        touched = edit.keys() | ({"amp", "verbose"} if edit.keys() & {"amp", "verbose"} else set())  # -vva is one word
        others = [word for chunk in chunks if not parse_words(script, chunk).values.keys() & touched for word in chunk]
        left = iter(edited)
        assert all(word in left for word in others), (words, edited)  # in their order

    check()
    assert num_refused < num_edits / 10


def test_words_are_refused_if_the_real_argparse_refuses_them_and_no_others(tmp_path: Path) -> None:
    script = known_script(tmp_path, KNOWN.replace("args, rest = parser.parse_known_args()", "parser.parse_args()"))
    parser: argparse.ArgumentParser = runpy.run_path(str(script.script))["parser"]
    wrong = [["--lr", "x"], ["--lr"], ["-b", "many"], ["--layers"], ["--layers", "1", "x"], ["--lrr=3"]]

    @settings(max_examples=150, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.sampled_from(CHUNKS + wrong), max_size=4))
    def check(chunks: list[list[str]]) -> None:
        words = [word for chunk in chunks for word in chunk]
        refused = parse_words(script, words).refused
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                parser.parse_args(words)
        except SystemExit:
            assert refused, words
        else:
            assert refused == [], words

    check()


@pytest.mark.parametrize(
    ("name", "words", "edit", "added"),
    [
        (
            "run_glue",
            "--max_seq_length=256 --pad_to_max_length True --columns 'x y'",
            {"task_name": "a"},
            "--task_name a",
        ),
        ("cleanrl", "--seed=1 --no-track --exp_name cleanrl", {"batch_size": 5}, "--batch-size 5"),
        ("click_app", "train --n 1 -v --tag=a --lr=1e-3 src --tag b", {"mode": "b"}, "--mode b"),
        ("typer_app", "d --lr=1e-1 --no-amp --tags a", {"n": 3}, "--n 3"),
    ],
)
def test_words_that_equal_a_default_stay_as_they_are(name: str, words: str, edit: dict[str, Any], added: str) -> None:
    line = parse_words(asked(ZOO / f"{name}.py"), shlex.split(words))
    assert line.edited(edit, line.command) == [*shlex.split(words), *added.split()]


def test_a_value_of_the_configurator_stays_behind_its_config_file() -> None:
    script = asked(ZOO / "nanogpt.py")
    line = parse_words(script, ["config/small.py", "--beta2=0.95", "--unknown"])
    assert line.values["beta2"] == next(a.default for a in script.arguments if a.name == "beta2")
    edited = line.edited({"learning_rate": 0.5})
    assert edited == ["config/small.py", "--beta2=0.95", "--unknown", "--learning_rate=0.5"]


# --- single rules ---------------------------------------------------------------------------------


LR = Argument("lr", types=(float,), default=0.1, flags=("--lr",))
SIZE = Argument("size", types=(int,), default=8, flags=("--batch-size", "-b"))
DATA = Argument("data", types=(str,), is_required=True)
POS = Argument("pos", types=(str,), default=None, nargs="?")
MORE = Argument("more", types=(tuple[str, ...],), default=(), nargs="*")
REST = Argument("rest", types=(tuple[str, ...],), default=(), nargs="...")
TRAIN, SCORE = (Argument(name, flags=(f"--{name}",), command=(name,)) for name in ("train", "score"))
COMMANDS = (("train",), ("score",))


@pytest.mark.parametrize(
    ("words", "edit", "expected"),
    [
        ("--lr 1 --batch-size many", {"lr": 2.0}, "--lr 2.0 --batch-size many"),
        ("--batch-size many --lr 1", {"size": 4}, "--batch-size 4 --lr 1"),
        ("--lr 1 -b 9 --lr 2", {"lr": 3.0}, "-b 9 --lr 3.0"),
        ("-b 9 x --lr 1", {"pos": "y"}, "-b 9 y --lr 1"),
        ("-b 9 x --lr 1", {"pos": "-y"}, "-b 9 --lr 1 -- -y"),
        ("-- -x", {"lr": 3.0}, "--lr 3.0 -- -x"),
        ("-- -x", {"pos": "y"}, "-- y"),
    ],
)
def test_a_changed_value_takes_the_place_of_its_words(words: str, edit: dict[str, Any], expected: str) -> None:
    assert parse_words(script_of(LR, SIZE, POS), words.split()).edited(edit) == expected.split()


def test_all_positional_values_follow_the_dashes_that_one_of_them_needs() -> None:
    script = script_of(POS, MORE, LR)
    words = parse_words(script, ()).edited({"pos": "-x", "more": ("a b",), "lr": 2.0})
    assert words == ["--lr", "2.0", "--", "-x", "a b"]
    assert parse_words(script, words).values == {"pos": "-x", "more": ("a b",), "lr": 2.0}


def test_an_edit_that_would_move_a_value_to_another_argument_is_refused() -> None:
    line = parse_words(script_of(POS, MORE), ["a", "b"])
    with pytest.raises(ConfigError, match="b: would be read differently; change the words of args"):
        line.edited({"pos": None})


def test_words_behind_an_unknown_flag_stay_there_and_are_not_missing() -> None:
    words = ["--trainer.seed", "3", "data/"]
    some = parse_words(script_of(LR, DATA, is_complete=False), words)
    assert (some.values, some.rest) == ({}, words)
    assert some.edited({"lr": 0.5}) == [*words, "--lr", "0.5"]
    all_known = parse_words(script_of(LR, DATA), words)  # as argparse reads it: 3 is the data
    assert (all_known.values, all_known.rest) == ({"data": "3"}, ["--trainer.seed", "data/"])
    assert all_known.edited({"lr": 0.5}) == [*words, "--lr", "0.5"]


def test_a_new_option_stands_before_an_argument_that_takes_the_rest() -> None:
    line = parse_words(script_of(DATA, REST, LR), ["train.py", "--lr", "7"])
    assert line.values == {"data": "train.py", "rest": ("--lr", "7")}
    assert line.edited({"lr": 2.0}) == ["--lr", "2.0", "train.py", "--lr", "7"]
    assert parse_words(line.script, ()).edited({"data": "a", "rest": ("-b",), "lr": 2.0}) == ["--lr", "2.0", "a", "-b"]


def test_pairs_stand_behind_all_others_as_python_literals() -> None:
    kinds = {"A.GPUS": tuple[int, ...], "A.NAME": str, "A.LR": float}
    pairs = [Argument(name, types=(kind,), flags=(name,), action="pair") for name, kind in kinds.items()]
    line = parse_words(script_of(LR, *pairs), ["--lr", "2", "A.LR", "3", "A.NEW", "7"])
    assert (line.values, line.rest) == ({"lr": 2.0, "A.LR": 3.0}, ["A.NEW", "7"])
    words = line.edited({"A.NAME": "1 b", "A.GPUS": (2, 3), "A.LR": -0.5})
    assert words == ["--lr", "2", "A.LR", "-0.5", "A.NEW", "7", "A.GPUS", "[2,3]", "A.NAME", "'1 b'"]
    assert parse_words(line.script, words).values == {"lr": 2.0, "A.LR": -0.5, "A.GPUS": (2, 3), "A.NAME": "1 b"}
    assert parse_words(line.script, ["A.NEW", "7"]).edited({"lr": 2.0}) == ["--lr", "2.0", "A.NEW", "7"]


def test_another_sub_command_takes_the_place_of_the_one_in_the_words() -> None:
    line = parse_words(
        script_of(LR, TRAIN, SCORE, commands=COMMANDS), ["--lr", "2", "train", "--train", "x", "--unknown"]
    )
    assert line.edited({}, ["score"]) == ["--lr", "2", "score", "--unknown"]
    assert line.edited({"score": "y"}, ["score"]) == ["--lr", "2", "score", "--unknown", "--score", "y"]
    assert line.edited({"lr": 0.1}, ["train"]) == ["train", "--train", "x", "--unknown"]
