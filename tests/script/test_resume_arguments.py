"""Words that resume a program: by the names of its arguments, and in the place of the same argument."""

from pathlib import Path
from typing import Any

import pytest

from nbtools.script.arguments.arguments import Argument
from nbtools.script.arguments.program_flags import default_folders, guessed_resume, num_epochs
from nbtools.script.resume_arguments import takes_path, with_checkpoint

from asking import script_of


def argument(flag: str, types: tuple[Any, ...] = (str,), default: object = None, **more: Any) -> Argument:
    name = flag.lstrip("-").replace("-", "_")
    return Argument(name, (*types, type(None)), default, flags=(flag,), **more)


@pytest.mark.parametrize(
    ("known", "sure", "asked"),
    [
        ([argument("--resume")], "--resume {checkpoint}", "--resume {checkpoint}"),
        ([argument("--resume-from"), argument("--checkpoint")], *["--resume-from {checkpoint}"] * 2),
        ([argument("--resume", (bool,), False, action="switch")], "--resume", "--resume"),
        ([argument("--resume", (int,), 0)], "", ""),
        ([argument("--resume", (), choices=("never", "auto"))], "", ""),
        ([argument("trainer.ckpt_path", action="key_value")], *["trainer.ckpt_path={checkpoint}"] * 2),
        ([argument("--load")], "", "--load {checkpoint}"),
        ([argument("--checkpoint", (bool,), False, action="switch")], "", ""),
        ([argument("--checkpoint_path", default="out/model.pt")], "", ""),
        ([argument("--lr", (float,), 0.1)], "", ""),
    ],
)
def test_the_words_follow_from_the_exact_name_of_an_argument(known: list[Argument], sure: str, asked: str) -> None:
    program = script_of(*known, is_complete=False)
    assert " ".join(guessed_resume([], program)) == sure
    assert " ".join(guessed_resume([], program, is_asked=True)) == asked, "a name that may mean something else"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("--lr 1 --ckpt-path epoch=3-step=400.ckpt", "--ckpt-path {checkpoint}"),
        ("fit model.resume=null", "model.resume={checkpoint}"),
        ("--resume=a", "--resume={checkpoint}"),
        ("--init_from=resume --auto", ""),
        ("", ""),
    ],
)
def test_the_words_follow_from_the_arguments_of_a_call(args: str, words: str) -> None:
    assert " ".join(guessed_resume(args.split(), None)) == words


@pytest.mark.parametrize(
    ("args", "words", "resumed"),
    [
        ("--lr -1 --resume old x", "--resume {checkpoint}", "--lr -1 x --resume /c"),
        ("--resume=old --a", "--resume {checkpoint}", "--a --resume /c"),
        ("--resume-from old --a", "--resume_from={checkpoint}", "--a --resume_from=/c"),
        ("--resume data.csv", "--resume", "data.csv --resume"),
        ("+ckpt_path=a b=c", "ckpt_path={checkpoint}", "b=c ckpt_path=/c"),
        ("--init_from=scratch --x=1", "--init_from=resume", "--x=1 --init_from=resume"),
        ("--resume --ckpt old --lr 1", "--resume --ckpt {checkpoint}", "--lr 1 --resume --ckpt /c"),
        ("", "--from dir:{checkpoint}", "--from dir:/c"),
        ("--lr 1 -- data", "--resume {checkpoint}", "--lr 1 --resume /c -- data"),
        ("--resume a -- --resume b", "--resume {checkpoint}", "--resume /c -- --resume b"),
        ("--ckpt_path epoch=3-step=400.ckpt --lr 1", "--ckpt_path {checkpoint}", "--lr 1 --ckpt_path /c"),
        ("--resume -1 --lr 1", "--resume {checkpoint}", "--lr 1 --resume /c"),
        ("--resume --lr 1", "--resume {checkpoint}", "--lr 1 --resume /c"),
        ("--name resume=1 resume=2", "--resume {checkpoint}", "--name resume=1 resume=2 --resume /c"),
        ("--opts a=1 --lr 1", "--opts load={checkpoint}", "--lr 1 --opts load=/c"),
    ],
)
def test_an_argument_that_resumed_before_is_replaced(args: str, words: str, resumed: str) -> None:
    assert " ".join(with_checkpoint(args.split(), words.split(), Path("/c"))) == resumed


def test_words_without_a_path_are_known_as_such() -> None:
    assert takes_path(["--resume={checkpoint}"])
    assert not takes_path(["--resume"])


@pytest.mark.parametrize(
    ("args", "found"),
    [
        ("", 10),
        ("--epochs 4", 4),
        ("--lr 1 --epochs=4", 4),
        ("--epochs 4 --epochs 5", 5),
        ("--num-epochs 3", 3),
        ("fit --trainer.max_epochs=3", 3),
        ("trainer.max_epochs=3", 3),
        ("--warmup_epochs 3", 10),
        ("--epochs 4.5", 10),
    ],
)
def test_the_number_of_epochs_is_that_of_the_words_or_the_default(args: str, found: int) -> None:
    known = script_of(argument("--warmup_epochs", (int,), 2), argument("--epochs", (int,), 10))
    assert num_epochs(args.split(), known) == found
    assert num_epochs([], None) is None


def test_folders_by_default_are_those_that_the_words_leave_out() -> None:
    known = script_of(argument("--out_dir", default="out"), argument("--lr", (float,), 0.1))
    assert default_folders(["--lr", "1"], known) == ["--out_dir", "out"]
    assert default_folders(["--out_dir=x"], known) == default_folders([], None) == []
