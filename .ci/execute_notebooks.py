"""Execute notebooks without a browser: `python .ci/execute_notebooks.py NOTEBOOK... [--store | --output DIR]`.

Each notebook runs from top to bottom in its own folder, cell by cell, with progress. `--store` writes the outputs back
into the notebook, without widget state and without metadata that differs between executions; the stored notebooks are
made so. Tags of a cell:

    summary         its output is printed at the end
    folded          its source is folded in the stored notebook
    folded-output   its output is folded
    picture         its first picture is also written to pictures/NOTEBOOK.png, which the notebook shows at its top
"""

import argparse
import base64
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellControlSignal, DeadKernelError

from nbtools.rundir.tail import terminal_text

_format: Any = nbformat  # untyped
_WIDGET = "application/vnd.jupyter.widget-view+json"


def main(argv: Sequence[str] | None = None) -> int:
    """Execute the notebooks that `argv` names; return 0, or 1 as soon as a cell of one of them fails."""
    parser = argparse.ArgumentParser(description="Execute notebooks.")
    parser.add_argument("notebooks", nargs="+", type=Path, metavar="NOTEBOOK")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--store", action="store_true", help="write the outputs back into the notebooks")
    where.add_argument("--output", type=Path, metavar="DIR", help="write the executed copies to DIR")
    parser.add_argument("--cell-timeout", type=int, default=1800, metavar="S", help="seconds for a cell (1800)")
    options = parser.parse_args(argv)
    for path in options.notebooks:
        if not path.is_file():
            parser.error(f"{path}: no such notebook")
    folder = options.output or (None if options.store else Path(tempfile.mkdtemp(prefix="nbtools-")))
    for path in options.notebooks:
        target = path if folder is None else folder / path.name
        if not execute(path, target, timeout_s=options.cell_timeout):
            return 1
    return 0


def execute(path: Path, target: Path, *, timeout_s: int = 1800) -> bool:
    """Execute the notebook at `path` in its own folder and write it, with its outputs, to `target`.

    Returns:
        Whether every cell succeeded. If not, the copy up to the failing cell is written, but never over `path` itself.
    """
    notebook = _format.read(path, as_version=4)
    os.environ.setdefault("JUPYTER_PREFER_ENV_PATH", "1")  # this environment's kernel, not the home directory's
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    print(f"{path}: {len(cells)} cells")
    number, failure, started = itertools.count(1), "", time.monotonic()
    client = NotebookClient(
        notebook,
        timeout=timeout_s,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.resolve().parent)}},
        extra_arguments=["--IPKernelApp.log_level=ERROR"],  # it warns about TCP at each start
        store_widget_state=False,
        coalesce_streams=True,  # as JupyterLab shows it, however the kernel divided it
        record_timing=False,
        on_cell_execute=lambda cell, **_: print(
            f"[{next(number)}/{len(cells)}] {cell.source.splitlines()[0][:100]}", flush=True
        ),
    )
    try:
        client.execute()
    except (CellControlSignal, DeadKernelError) as error:
        failure = terminal_text(str(error).encode(errors="replace"))
    if not failure or target.resolve() != path.resolve():
        target.parent.mkdir(parents=True, exist_ok=True)
        strip(notebook)
        _format.write(notebook, target)
        _write_picture(notebook, target)
    if failure:
        print(f"\n{failure}\n\n{path}: failed", file=sys.stderr, flush=True)
        return False
    for cell in cells:
        if "summary" in cell.metadata.get("tags", []):
            print(f"\n{_text(cell)}")
    print(f"\n{path}: done in {time.monotonic() - started:.0f} s, outputs in {target.resolve()}", flush=True)
    return True


def strip(notebook: Any) -> None:
    """Remove what differs between executions, and widgets, whose models are lost with the kernel."""
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    notebook.metadata = _format.from_dict({"kernelspec": kernel, "language_info": {"name": "python"}})
    for cell in notebook.cells:
        for key in ("execution", "scrolled", "collapsed", "jupyter"):
            cell.metadata.pop(key, None)
        if cell.cell_type != "code":
            continue
        tags = cell.metadata.get("tags", [])
        folded = {"source_hidden": "folded" in tags, "outputs_hidden": "folded-output" in tags}
        if any(folded.values()):
            cell.metadata["jupyter"] = {key: True for key, is_hidden in folded.items() if is_hidden}
        for output in cell.outputs:
            # Without its kernel a front end shows "model not found" instead of the text.
            if {"text/plain", _WIDGET} & {*output.get("data", ())}:
                output.data.pop(_WIDGET, None)
        cell.outputs = [output for output in cell.outputs if output.get("data") not in ({}, {"text/plain": ""})]


def _write_picture(notebook: Any, path: Path) -> None:
    """Write the first picture of the cell tagged `picture` to pictures/ beside the notebook."""
    tagged = (cell for cell in notebook.cells if "picture" in cell.metadata.get("tags", []))
    found = (
        output.data["image/png"] for cell in tagged for output in cell.outputs if "image/png" in output.get("data", ())
    )
    if (png := next(found, None)) is not None:
        target = path.parent / "pictures" / f"{path.stem}.png"
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(base64.b64decode(png))


def _text(cell: Any) -> str:
    """Return a cell's output and result as plain text."""
    parts: list[str] = []
    for output in cell.outputs:
        if output.output_type == "stream":
            parts.append(str(output.text))
        elif "text/plain" in output.get("data", {}):
            parts.append(output.data["text/plain"] + "\n")
    return terminal_text("".join(parts).encode(errors="replace")).rstrip()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
