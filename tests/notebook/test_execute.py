"""The stored notebooks, and the command that executes them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from execute_notebooks import main

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def notebook(path: Path, *cells: str | tuple[str, str]) -> Path:
    """Write a notebook of code cells; a pair is a source and its tag."""
    written = nbformat.v4.new_notebook(
        metadata={"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    )
    for cell in cells:
        source, tag = cell if isinstance(cell, tuple) else (cell, None)
        written.cells.append(nbformat.v4.new_code_cell(source, metadata={"tags": [tag]} if tag else {}))
    nbformat.write(written, path)
    return path


@pytest.fixture(autouse=True)
def _own_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")  # which `execute` sets for its process


def execute(*arguments: str | Path) -> int:
    """Execute in this process: starting one and importing Jupyter takes longer than most of these notebooks."""
    return main([str(argument) for argument in arguments])


def test_execution_shows_progress_and_ends_with_the_summary_and_touches_nothing(tmp_path: Path) -> None:
    path = notebook(
        tmp_path / "a.ipynb", "x = 40 + 2\nprint('first')", ("print(f'sum {x}')", "summary"), "print('last')"
    )
    before = path.read_bytes()
    command = [sys.executable, ROOT / ".ci" / "execute_notebooks.py", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "[1/3] x = 40 + 2" in done.stdout
    assert re.search(r"print\('last'\)\n\nsum 42\n", done.stdout)
    assert path.read_bytes() == before


def test_failing_cell_is_shown_and_the_exit_code_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = notebook(tmp_path / "a.ipynb", "print('fine')", "raise ValueError('boom 17')", "print('never')")
    before = path.read_bytes()
    assert execute(path, "--store") == 1
    out, err = capfd.readouterr()
    assert "ValueError: boom 17" in err and "\x1b" not in err
    assert "never" not in out
    assert path.read_bytes() == before


def test_dying_kernel_is_a_failure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert execute(notebook(tmp_path / "a.ipynb", "import os\nos._exit(3)")) == 1
    assert "died" in capfd.readouterr().err.lower()


def test_missing_notebook_is_a_wrong_call(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        execute(tmp_path / "no.ipynb")
    assert "no such notebook" in capfd.readouterr().err


def test_cells_run_in_the_folder_of_the_notebook_on_this_python(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = notebook(tmp_path / "a.ipynb", ("import os, sys\nprint(os.getcwd(), sys.executable)", "summary"))
    assert execute(path, "--output", tmp_path / "out") == 0
    assert f"{tmp_path} {sys.executable}" in capfd.readouterr().out
    assert (tmp_path / "out" / "a.ipynb").is_file()


def test_stored_notebook_keeps_outputs_and_counts_and_nothing_of_the_widgets(tmp_path: Path) -> None:
    path = notebook(tmp_path / "a.ipynb", "import ipywidgets\nipywidgets.IntSlider(7)", "print('kept')")
    assert execute(path, "--store") == 0
    first = path.read_bytes()
    stored = json.loads(first)
    assert "widgets" not in stored["metadata"]
    assert WIDGET_VIEW not in first.decode()
    assert [cell["execution_count"] for cell in stored["cells"]] == [1, 2]
    assert "IntSlider(value=7)" in stored["cells"][0]["outputs"][0]["data"]["text/plain"]
    assert execute(path, "--store") == 0
    assert path.read_bytes() == first


def test_tags_fold_what_is_stored_and_write_the_picture_of_a_notebook(tmp_path: Path) -> None:
    png = "from base64 import b64decode\nfrom IPython.display import Image\nImage(b64decode('iVBORw0KGgo='))"
    path = notebook(tmp_path / "a.ipynb", ("assert True", "folded"), ("print(1)", "folded-output"), (png, "picture"))
    assert execute(path, "--store") == 0
    stored = [cell.metadata.get("jupyter") for cell in nbformat.read(path, as_version=4).cells]
    assert stored == [{"source_hidden": True}, {"outputs_hidden": True}, None]
    assert (tmp_path / "pictures" / "a.png").read_bytes() == b"\x89PNG\r\n\x1a\n"


def test_nbval_notices_another_output_and_a_broken_assert(tmp_path: Path) -> None:
    path = notebook(tmp_path / "a.ipynb", ("print('stored')", "nbval-check-output"), "assert 1 + 1 == 2")
    assert execute(path, "--store") == 0
    source = path.read_text()
    for name, change in (("b", ("stored\\n", "altered\\n")), ("c", ("== 2", "== 3"))):
        assert change[0] in source
        (tmp_path / f"{name}.ipynb").write_text(source.replace(*change))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")  # whatever a folder above says
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--nbval-lax", "--nbval-current-env", "-rA"]
    environment = {**os.environ, "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    found = re.findall(r"^(PASSED|FAILED) (\w)\.ipynb::Cell (\d)", done.stdout, re.MULTILINE)
    assert sorted((name, int(cell), said) for said, name, cell in found) == [
        *(("a", 0, "PASSED"), ("a", 1, "PASSED")),
        *(("b", 0, "FAILED"), ("b", 1, "PASSED")),
        *(("c", 0, "PASSED"), ("c", 1, "FAILED")),
    ], done.stdout


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_stored_notebook_is_executed_and_fit_for_readers(path: Path) -> None:
    stored = nbformat.read(path, as_version=4)
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    checked = [cell for cell in code if "nbval-check-output" in cell.metadata.get("tags", [])]
    assert checked, "nbval would compare nothing"
    assert all(cell.outputs for cell in checked), "a cell without outputs passes nbval whatever it prints"
    story = [cell for cell in code if "folded" not in cell.metadata.get("tags", [])]
    assert any("assert" in cell.source for cell in code)
    assert not any(re.search(r"\bassert\b|matplotlib", cell.source) for cell in story), "a check or a plot in the story"
    for cell in code:
        folded = cell.metadata.get("jupyter", {})
        assert folded.get("source_hidden", False) == ("folded" in cell.metadata.get("tags", []))
        assert folded.get("outputs_hidden", False) == ("folded-output" in cell.metadata.get("tags", []))
    text = "".join(cell.source for cell in stored.cells if cell.cell_type == "markdown")
    pictures = re.findall(r"!\[[^\]]{20,}\]\((pictures/[\w.]+)\)", text)
    assert f"pictures/{path.stem}.png" in pictures, "the result first"
    assert all((path.parent / picture).is_file() for picture in pictures)
    outputs = [output for cell in code for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs), "no picture for readers without a kernel"
    assert all(output.output_type != "error" and output.get("name") != "stderr" for output in outputs)
    text = path.read_text()
    assert WIDGET_VIEW not in text
    assert set(stored.metadata) == {"kernelspec", "language_info"}
    assert stored.metadata.kernelspec.name == "python3"
    assert not re.search(r"(?<![\w/.])/(home|root|tmp|work|Users)/", text), "a path of the machine it was executed on"


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS][:1] == ["01_launch_ddp"]
