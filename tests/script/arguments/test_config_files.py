"""Config files: what is read as one, and that a hostile one costs little."""

import time
from pathlib import Path

import pytest
from nbtools.script.arguments.config_files import config_arguments, load_config


def test_a_json_file_indented_with_tabs_is_a_config(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{\n\t"lr": 0.1,\n\t"model": {"width": 8}\n}\n')
    config = load_config(path)
    assert config == {"lr": 0.1, "model": {"width": 8}}
    assert [each.field.name for each in config_arguments(config, path.name, config.lines)] == ["lr", "model.width"]


@pytest.mark.parametrize("name", ["config.json", "config.yaml"])
def test_the_lines_of_keys_are_known(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text('{\n  "lr": 0.1,\n  "model": {\n    "width": 8}\n}\n')
    config = load_config(path)
    assert config is not None
    assert config.lines == {"lr": 2, "model": 3, "model.width": 4}


def aliases() -> str:
    levels = [f"l{n}: &l{n} {{a: *l{n - 1}, b: *l{n - 1}}}" for n in range(1, 16)]
    return "\n".join(["l0: &l0 {a: 1, b: 2}", *levels])


@pytest.mark.parametrize(
    "text",
    [
        aliases(),
        "".join(f"key_{number}: {{lr: 0.1, path: data/{number}}}\n" for number in range(6000)),
        "a: &a\n  b: *a\n",
        "- 1\n",
        "",
        "a: [\n",
    ],
    ids=["aliases", "large", "recursive", "a list", "empty", "broken"],
)
def test_what_is_no_config_of_a_program_is_passed_over_at_once(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    started = time.monotonic()
    assert load_config(path) is None
    assert time.monotonic() - started < 20
