"""A zoo of training programs, as well-known ones declare their arguments: found in the source, and by asking."""

import importlib.util
import os
import sys
from pathlib import Path
from types import NoneType
from typing import Any

import pytest
import yaml

from nbtools.script.arguments.arguments import Argument, ScriptArguments
from nbtools.script.arguments.ask import ask
from nbtools.script.arguments.from_source import arguments_of

ZOO = Path(__file__).parent / "zoo"
EXPECTED: dict[str, dict[str, Any]] = yaml.safe_load((ZOO / "expected.yaml").read_text(encoding="utf-8"))
SEARCH = [Path(path) for path in sys.path if path]
MODULES = {"package/train": "package.train"}
NEEDS = {
    "fire_app": "fire",
    "hydra_app": "hydra",
    "lightning_cli": "lightning",
    "litgpt": "jsonargparse",
} | dict.fromkeys(("omegaconf_app", "torchtune"), "omegaconf")
"""Packages of the extra `zoo` that a program imports: in CI they are there."""
NO_SKIP = bool(os.environ.get("NBTOOLS_NO_SKIP"))


def kind(value: Any) -> str:
    if value is NoneType:
        return "None"
    return f"{value.__args__[0].__name__}*" if hasattr(value, "__args__") else str(value.__name__)


def row(argument: Argument) -> str:
    """An argument as `expected.yaml` writes it."""
    field = argument.field
    types = "|".join(map(kind, field.types)) or "-"
    known = f"= {field.default_text}" if field.default_text else repr(field.default)
    default = "required" if field.is_required else known
    named = [str(choice) for choice in field.choices or () if choice is not None]
    choices = f" of {'/'.join(named)}" if named else ""
    return f"{' '.join([*argument.command, field.name])}: {types} {default}{choices}"


def from_source(name: str) -> ScriptArguments:
    return arguments_of(ZOO / f"{name}.py", module=MODULES.get(name), search=SEARCH)


def facts(argument: Argument) -> tuple[Any, ...]:
    """What the source and the program have to agree upon."""
    field = argument.field
    return (
        *(field.types, field.default, field.choices, field.is_required, field.is_secret),
        *(argument.flags, argument.negative_flags, argument.action, argument.nargs, argument.command),
        *(argument.truth if bool in field.types else (), bool(argument.exclusive), field.source),
    )


def test_the_zoo_has_at_least_thirty_programs() -> None:
    programs = {path.relative_to(ZOO).with_suffix("").as_posix() for path in ZOO.rglob("*.py")}
    assert len(EXPECTED) >= 30
    assert set(EXPECTED) <= programs


@pytest.mark.parametrize("name", EXPECTED)
def test_the_source_alone_tells_the_arguments(name: str) -> None:
    expected = EXPECTED[name]
    found = from_source(name)
    assert found.parser == expected["parser"]
    assert found.is_complete is expected["by_source"], found.notes
    assert found.config_names == tuple(expected.get("configs", ()))
    assert found.is_complete or (found.can_ask and found.notes)
    rows = [row(argument) for argument in found.arguments]
    if found.is_complete:
        assert [line for line in rows if line in expected["arguments"]] == expected["arguments"], rows
        assert len(rows) == len(expected["arguments"]) or len(rows) > 40
        assert all(argument.field.source.partition(":")[2].isdigit() for argument in found.arguments)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in EXPECTED if EXPECTED[name]["parser"] not in ("constants", "config file")]
)
def test_asking_tells_all_arguments_and_executes_nothing_after_the_parser(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None and not NO_SKIP:
        pytest.skip(f"needs {NEEDS[name]} of the extra zoo")
    mark = tmp_path / "mark"
    monkeypatch.setenv("ZOO_MARK", str(mark))
    before = from_source(name)
    found = ask(ZOO / f"{name}.py", sys.executable, module=MODULES.get(name), search=SEARCH, timeout_s=120)
    assert found.is_complete, found.notes
    assert found.parser == EXPECTED[name]["parser"]
    assert not mark.exists()
    if not before.is_complete:
        rows = [row(argument) for argument in found.arguments]
        assert [line for line in rows if line in EXPECTED[name]["arguments"]] == EXPECTED[name]["arguments"], rows
        assert len(rows) == len(EXPECTED[name]["arguments"]) or len(rows) > 40
        return
    by_name = {argument.field.name: argument for argument in found.arguments}
    assert [argument.field.name for argument in before.arguments if argument.field.name not in by_name] == []
    assert len(by_name) == len(before.arguments)
    known = [argument for argument in before.arguments if not argument.field.default_text]
    assert {a.field.name: facts(a) for a in known} == {a.field.name: facts(by_name[a.field.name]) for a in known}
    assert {argument.command for argument in found.arguments} == {argument.command for argument in before.arguments}
    assert found.commands == before.commands
    texts = [{a.field.name: a.field.default_text for a in each.arguments} for each in (before, found)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("name", ["nanogpt", "omegaconf_app"])
def test_programs_without_a_parser_are_never_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "mark"
    monkeypatch.setenv("ZOO_MARK", str(mark))
    found = ask(ZOO / f"{name}.py", sys.executable)
    assert "not run" in found.notes[0]
    assert not from_source(name).can_ask
    assert not mark.exists()


def test_all_fields_of_training_arguments_are_read_from_its_source() -> None:
    import dataclasses

    from transformers import TrainingArguments

    found = {argument.field.name for argument in from_source("run_mlm").arguments}
    assert found == {field.name for field in dataclasses.fields(TrainingArguments) if field.init} | {"mlm_probability"}
    (rate,) = [a.field for a in from_source("run_mlm").arguments if a.field.name == "learning_rate"]
    assert (rate.default, rate.help) == (1e-3, "A larger one.")
    (batch,) = [a.field for a in from_source("run_mlm").arguments if a.field.name == "per_device_train_batch_size"]
    assert batch.source.startswith("transformers/training_args.py:")
    (token,) = [a.field for a in from_source("run_mlm").arguments if a.field.name == "hub_token"]
    assert token.is_secret
