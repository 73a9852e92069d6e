"""Words that resume a program: by the names of its arguments, and in the place of the same argument."""

from pathlib import Path

import pytest

from nbtools.machine.interpreter import own_interpreter
from nbtools.script.arguments.arguments import ScriptArguments
from nbtools.script.arguments.program_flags import declared_arguments, flags_of_program, num_epochs
from nbtools.script.resume_arguments import arguments_in, resume_words, takes_path, with_checkpoint

from asking import asked

SOURCES = [
    ("p.add_argument('-r', '--resume', type=str)", "--resume {checkpoint}"),
    ("p.add_argument('--resume', action='store_true')", "--resume"),
    ("p.add_argument('--resume', action=argparse.BooleanOptionalAction, default=False)", "--resume"),
    ("p.add_argument('--resume', type=str2bool, default=False)", "--resume True"),
    (
        "p.add_argument('--lr'); p.add_argument('--checkpoint'); p.add_argument('--resume-from')",
        "--resume-from {checkpoint}",
    ),
    ("p.add_argument('--load', metavar='DIR')", "--load {checkpoint}"),
    ("p.add_argument('--auto_resume', action='store_true')", "--auto_resume"),
    ("p.add_argument('--no-resume', action='store_true')", ""),
    ("@click.option('--ckpt-path')\ndef main(ckpt_path): 0", "--ckpt-path {checkpoint}"),
    ("@click.option('--resume/--fresh', is_flag=True)\ndef main(resume): 0", "--resume"),
    ("HfArgumentParser(TrainingArguments)", "--resume_from_checkpoint {checkpoint}"),
    ("@dataclass\nclass A:\n    resume: str = ''\ntyro.cli(A)", "--resume {checkpoint}"),
    ("@dataclass\nclass A:\n    resume: bool = False\nHfArgumentParser(A)", "--resume True"),
    ("LightningCLI(Model, Data)", "--ckpt_path {checkpoint}"),
    ("init_from = 'scratch'\nexec(open('configurator.py').read())", "--init_from=resume"),
    ("@hydra.main()\ndef main(cfg): fit(cfg.get('ckpt_path'))", "ckpt_path={checkpoint}"),
    ("@hydra.main()\ndef main(cfg): fit(cfg.trainer.ckpt_path)", "trainer.ckpt_path={checkpoint}"),
    ("resume = True\nckpt_path = 'x'", ""),
    ("not python", ""),
    ("p.add_argument('--resume', type=int, default=0)", ""),
    ("p.add_argument('--resume', choices=['never', 'auto'])", ""),
    ("p.add_argument('--resume', default=0)", ""),
    ("p.add_argument('--resume', default='latest')", "--resume {checkpoint}"),
    ("p.add_argument('--checkpoint', action='store_true')", ""),
    ("p.add_argument('--load', default=False, type=str2bool)", ""),
    ("p.add_argument('--checkpoint_path', default='out/model.pt')", ""),
    (
        "p.add_argument('--ckpt_path', type=str, default=''); p.add_argument('--resume', type=int)",
        "--ckpt_path {checkpoint}",
    ),
    ("@click.option('--resume', type=click.IntRange(0))\ndef main(resume): 0", ""),
    ("@dataclass\nclass A:\n    resume: int | None = None\ntyro.cli(A)", ""),
    ("@dataclass\nclass A:\n    resume: Literal['a', 'b'] = 'a'\ntyro.cli(A)", ""),
]


@pytest.mark.parametrize(("source", "words"), SOURCES)
def test_the_words_follow_from_what_the_source_declares(source: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(source)
    assert " ".join(resume_words(arguments_in(tmp_path / "train.py"))) == words


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        *((flag, ()) for flag in ("--load", "--load-checkpoint", "--checkpoint", "--ckpt", "--checkpoint_path")),
        *((flag, (flag, "{checkpoint}")) for flag in ("--resume", "--resume-from", "--ckpt_path")),
        ("--init_from", ("--init_from=resume",)),
    ],
)
def test_only_a_name_that_means_a_resume_is_used_without_a_question(flag: str, words: tuple[str, ...]) -> None:
    assert resume_words([flag], unasked=True) == words
    assert resume_words([flag])


def declared(path: Path) -> ScriptArguments | None:
    """What a launch knows of a program that was asked."""
    asked(path)
    return declared_arguments(path, own_interpreter(), path.parent, None)


def test_the_types_of_arguments_in_other_modules_count_as_well(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("from options import make\nargs = make().parse_args()\n")
    (tmp_path / "options.py").write_text(
        "import argparse\ndef make():\n    p = argparse.ArgumentParser()\n"
        "    p.add_argument('--resume', choices=['never', 'auto'])\n    p.add_argument('--resume-from', type=int)\n"
        "    p.add_argument('--checkpoint', action='store_true')\n    p.add_argument('--load', default='a.pt')\n"
        "    p.add_argument('--ckpt', default=None)\n    return p\n"
    )
    found = flags_of_program(tmp_path / "train.py", [], declared(tmp_path / "train.py"))
    assert found == {
        "--resume": "number",
        "--resume-from": "number",
        "--checkpoint": "nothing",
        "--load": "preset",
        "--ckpt": "value",
    }
    assert resume_words(found) == ("--ckpt", "{checkpoint}")
    assert resume_words(found, unasked=True) == ()


def test_the_words_follow_from_the_arguments_of_a_call(tmp_path: Path) -> None:
    missing = tmp_path / "train.py"
    assert resume_words(arguments_in(missing, ["--lr", "1", "--ckpt-path", "a"])) == ("--ckpt-path", "{checkpoint}")
    assert resume_words(arguments_in(missing, ["fit", "model.resume=null"])) == ("model.resume={checkpoint}",)
    assert resume_words(arguments_in(missing, ["--resume", "--lr", "1"])) == ("--resume",)
    named = arguments_in(missing, ["--ckpt_path", "epoch=3-step=400.ckpt"])
    assert resume_words(named) == ("--ckpt_path", "{checkpoint}")
    assert resume_words({"--lr", "--resume"}) == ("--resume", "{checkpoint}")
    assert resume_words([]) == ()


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


def test_the_parser_may_be_in_another_module_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("from options import make\nargs = make().parse_args()\n")
    (tmp_path / "options.py").write_text(
        "import argparse\ndef make():\n    p = argparse.ArgumentParser()\n    p.add_argument('--resume-from')\n"
        "    p.add_argument('--resume', action='store_true')\n    p.add_argument('--lr', type=float)\n    return p\n"
    )
    assert resume_words(arguments_in(tmp_path / "train.py")) == ()
    known = declared(tmp_path / "train.py")
    found = flags_of_program(tmp_path / "train.py", ["--seed", "1"], known)
    assert found == {"--seed": "value", "--resume-from": "value", "--resume": "nothing", "--lr": "number"}
    assert resume_words(found) == ("--resume-from", "{checkpoint}")
    (tmp_path / "train.py").write_text("no python")
    assert declared_arguments(tmp_path / "train.py", own_interpreter(), tmp_path, None) is None
    assert flags_of_program(tmp_path / "train.py", ["--seed", "1"], None) == {"--seed": "value"}


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
def test_the_number_of_epochs_is_that_of_the_words_or_the_default(tmp_path: Path, args: str, found: int) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--warmup_epochs', type=int, default=2)\n"
        "p.add_argument('--epochs', type=int, default=10)\np.parse_args()\n"
    )
    assert num_epochs(args.split(), declared(path)) == found
    assert num_epochs([], None) is None


def test_a_source_is_read_and_never_executed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\np.add_argument('--resume')")
    assert resume_words(arguments_in(tmp_path / "train.py"))
    assert not (tmp_path / "executed").exists()
