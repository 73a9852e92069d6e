"""A zoo of training programs, as well-known ones declare their arguments: complete by asking."""

import importlib.util
import os
from pathlib import Path
from types import NoneType
from typing import Any

import pytest
import yaml

from nbtools.script.arguments.arguments import Argument
from nbtools.script.arguments.ask import known_arguments
from nbtools.script.arguments.glance import glance

from asking import PYTHON, asked

ZOO = Path(__file__).parent / "zoo"
EXPECTED: dict[str, dict[str, Any]] = yaml.safe_load((ZOO / "expected.yaml").read_text(encoding="utf-8"))
MODULES = {"package/train": "package.train"}
NEEDS = {
    "fire_app": "fire",
    "hydra_app": "hydra",
    "lightning_cli": "lightning",
    "litgpt": "jsonargparse",
} | dict.fromkeys(("omegaconf_app", "structured_app", "torchtune"), "omegaconf")
"""Packages of the extra `zoo` that a program imports: in CI they are there."""
WITH_COMMANDS = ("subcommands", "click_app", "tyro_subcommands", "lightning_cli")
"""Programs that need a sub-command."""
NO_SKIP = bool(os.environ.get("NBTOOLS_NO_SKIP"))


def kind(value: Any) -> str:
    if value is NoneType:
        return "None"
    return f"{value.__args__[0].__name__}*" if hasattr(value, "__args__") else str(value.__name__)


def row(argument: Argument) -> str:
    """An argument as `expected.yaml` writes it."""
    types = "|".join(map(kind, argument.types)) or "-"
    known = f"= {argument.default_text}" if argument.default_text else repr(argument.default)
    default = "required" if argument.is_required else known
    named = [str(choice) for choice in argument.choices or () if choice is not None]
    choices = f" of {'/'.join(named)}" if named else ""
    return f"{' '.join([*argument.command, argument.name])}: {types} {default}{choices}"


def test_the_zoo_has_at_least_forty_programs() -> None:
    programs = {path.relative_to(ZOO).with_suffix("").as_posix() for path in ZOO.rglob("*.py")}
    assert len(EXPECTED) >= 40
    assert set(EXPECTED) <= programs


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_a_program_tells_all_its_arguments_and_nothing_after_the_parser_is_executed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None and not NO_SKIP:
        pytest.skip(f"needs {NEEDS[name]} of the extra zoo")
    monkeypatch.setenv("ZOO_MARK", str(tmp_path / "mark"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    script, expected = ZOO / f"{name}.py", EXPECTED[name]
    found = asked(script, MODULES.get(name), timeout_s=120)
    assert found.is_complete
    assert found.parser == expected["parser"]
    assert not (tmp_path / "mark").exists()
    if name in WITH_COMMANDS:
        assert found.needs_command == ((),)  # not `data` of subcommands, which has an optional one
    rows = sorted(map(row, found.arguments))
    assert [line for line in rows if line in expected["arguments"]] == sorted(expected["arguments"]), rows
    assert len(rows) == len(expected["arguments"]) or len(rows) > 40
    sources = (a.source for a in found.arguments if a.source)
    assert all(source.partition(":")[2].isdigit() or source.endswith(".yaml") for source in sources)
    assert known_arguments(script, PYTHON, script.parent, MODULES.get(name)) == found


def test_the_glance_has_rows_for_most_programs_and_claims_none_of_them_complete() -> None:
    rows = {name: len(glance(ZOO / f"{name}.py", MODULES.get(name)).arguments) for name in EXPECTED}
    assert sum(count > 0 for count in rows.values()) >= 30
    assert not any(glance(ZOO / f"{name}.py").is_complete for name in EXPECTED)
