"""A glance at a program's source: preliminary rows, nothing is executed, and bad input is a sentence."""

import contextlib
import random
import time
from collections.abc import Callable
from pathlib import Path
from types import NoneType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nbtools.errors import ScriptError
from nbtools.script.arguments.arguments import ScriptArguments
from nbtools.script.arguments.computed_defaults import computed_defaults
from nbtools.script.arguments.glance import glance

ZOO = Path(__file__).parent / "zoo"
HEAD = "import argparse, os\nparser = argparse.ArgumentParser()\n"
TAIL = "args = parser.parse_args()\n"
Read = Callable[..., ScriptArguments]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Write a script, and files beside it, and glance at it."""

    def run(text: str, others: dict[str, str] | None = None) -> ScriptArguments:
        for name, content in {**(others or {}), "train.py": text}.items():
            (tmp_path / name).write_text(content, encoding="utf-8")
        return glance(tmp_path / "train.py")

    return run


def names(found: ScriptArguments) -> list[str]:
    return [argument.name for argument in found.arguments]


@pytest.mark.parametrize(
    ("words", "types", "default", "default_text", "choices"),
    [
        ("type=float, default=1e-3", (float,), 1e-3, "", None),
        ("type=int, default=WIDTH * 4", (int,), None, "WIDTH * 4", None),
        ("default=NAME", (str,), "base", "", None),
        ("action='store_true'", (bool,), False, "", None),
        ("action=argparse.BooleanOptionalAction, default=True", (bool,), True, "", None),
        ("choices=['a', 'b'], default='a'", (), "a", "", ("a", "b")),
        ("nargs=2, type=float, default=(0.9, 0.95)", (tuple[float, ...],), (0.9, 0.95), "", None),
        ("action='append'", (tuple[str, ...], NoneType), None, "", None),
        ("default=os.environ['USER']", (str,), None, "os.environ['USER']", None),
        ("type=json.loads, default=3", (int,), 3, "", None),
        ("nargs=argparse.REMAINDER, type=int", (tuple[int, ...], NoneType), None, "", None),
        ("default=UNKNOWN.value", (str,), None, "UNKNOWN.value", None),
    ],
)
def test_a_literal_argument_is_a_row_before_the_program_was_asked(
    words: str, types: Any, default: Any, default_text: str, choices: Any, read: Read
) -> None:
    found = read(f"NAME = 'base'\n{HEAD}parser.add_argument('--x', {words})\n{TAIL}")
    (field,) = found.arguments
    assert (field.types, field.default, field.default_text, field.choices) == (types, default, default_text, choices)
    assert (field.source, found.is_complete, found.can_ask) == ("train.py:4", False, True)


def test_what_argparse_would_refuse_or_answer_itself_is_no_row(read: Read) -> None:
    wrong = ("'--a', nargs=0", "'--b', action='nonsense'", "'-c', 'd'", "UNKNOWN", "'--h', action='version'")
    large = "'--x', nargs=1000000000, help='%(default)999999999s 50% of'"
    found = read(HEAD + "".join(f"parser.add_argument({words})\n" for words in (*wrong, large)) + TAIL)
    assert [argument.help for argument in found.arguments] == ["%(default)999999999s 50% of"]


@pytest.mark.parametrize("name", ["--api-key", "--hf_token", "--tokenizer"])
def test_names_of_secrets_are_marked(name: str, read: Read) -> None:
    (field,) = read(f"{HEAD}parser.add_argument({name!r})\n{TAIL}").arguments
    assert field.is_secret is (name != "--tokenizer")


@pytest.mark.parametrize("text", ["print('x')\n", "import torch\nlr = 0.1\nfor step in range(10): pass\n", ""])
def test_a_script_without_a_parser_is_not_to_be_asked(text: str, read: Read) -> None:
    found = read(text)
    assert (found.parser, found.arguments, found.is_complete, found.can_ask) == ("", (), False, False)


def test_a_dataclass_or_constant_beside_a_literal_parser_is_no_argument(read: Read) -> None:
    others = "from dataclasses import dataclass\n@dataclass\nclass Model:\n    width: int = 3\nlr = 0.1\n"
    reads = "exec(open('version.py').read())\n"
    found = read(f"{others}{reads}{HEAD}parser.add_argument('--x')\n{TAIL}")
    assert (names(found), found.parser) == (["x"], "argparse")
    assert (names(read(others + reads)), names(read(f"{others}OmegaConf.from_cli()\n"))) == (["lr"], [])


def test_a_parser_in_a_module_of_the_project_can_be_asked(read: Read) -> None:
    others = {"options.py": "from deeper import make\n", "deeper.py": HEAD}
    assert read("import options\noptions.make()\n", others).can_ask


def test_a_script_in_another_encoding_is_read(tmp_path: Path) -> None:
    text = f"# coding: latin-1\n{HEAD}parser.add_argument('--x', help='Größe')\n{TAIL}"
    (tmp_path / "train.py").write_bytes(text.encode("latin-1"))
    assert glance(tmp_path / "train.py").arguments[0].help == "Größe"


@pytest.mark.parametrize(
    "body",
    [
        "while True: pass\n",
        "x = 10 ** 10 ** 10\n",
        "x = 'a' * 10 ** 10\n",
        "a = 'x'\n" + "a = a + a + a\n" * 60,
        "a0 = open('x')\n" + "".join(f"a{n} = a{n - 1} + a{n - 1} + a{n - 1}\n" for n in range(1, 40)),
        "import train\nfrom train import *\n",
        "".join(f"n{a} = open(n{a}) + {' + '.join(f'n{b}' for b in range(60))}\n" for a in range(60)),
        "from typing import Literal\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    a: Literal[X] = 1\n",
        "x = " + "-" * 900 + "1\n",
        "x = " + "+".join(["1"] * 900) + "\n",
        "from dataclasses import dataclass\n@dataclass\nclass A(A): pass\n",
    ],
)
def test_a_hostile_source_costs_little(body: str, tmp_path: Path, read: Read) -> None:
    started = time.process_time()
    found = read(HEAD + body + "parser.add_argument('--x')\n" + TAIL)
    computed_defaults(tmp_path / "train.py")
    assert time.process_time() - started < 10
    assert "x" in names(found)


SOURCES = sorted(path for path in ZOO.rglob("*.py") if path.stat().st_size)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(SOURCES), st.integers(0, 2**32))
def test_a_script_with_missing_and_swapped_lines_never_fails(tmp_path: Path, source: Path, seed: int) -> None:
    dice = random.Random(seed)
    lines = source.read_text(encoding="utf-8").splitlines()
    for _ in range(dice.randint(1, 4)):
        if dice.random() < 0.5:
            del lines[dice.randrange(len(lines))]
        first, second = dice.randrange(len(lines)), dice.randrange(len(lines))
        lines[first], lines[second] = lines[second], lines[first]
    script = tmp_path / source.name
    script.write_text("\n".join(lines), encoding="utf-8")
    with contextlib.suppress(ScriptError):
        found = names(glance(script))
        assert len(set(found)) == len(found)
