"""A Jupyter server on a project, spoken to over its REST interface."""

import json
import os
import secrets
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from waiting import eventually

SETTINGS = {
    "@jupyterlab/apputils-extension/notification.jupyterlab-settings": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/docmanager-extension/plugin.jupyterlab-settings": {"autosave": False},
}


@dataclass
class Lab:
    """A Jupyter server on a project of its own."""

    project: Path
    url: str
    token: str
    process: subprocess.Popen[bytes]
    runtime: Path
    """Where its kernels are found."""

    def ask(self, path: str, method: str = "GET", content: object = None) -> Any:
        """Call the server's REST API."""
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, method=method)
        request.add_header("Authorization", f"token {self.token}")
        with urllib.request.urlopen(request, timeout=300) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def write_notebook(self, name: str, *sources: str) -> str:
        """Write a notebook of code cells into `notebooks/`; return its path for `Notebook.open`."""
        notebook = nbformat.v4.new_notebook()
        notebook.cells = [nbformat.v4.new_code_cell(source) for source in sources]
        notebook.metadata.kernelspec = {"display_name": "Python 3", "language": "python", "name": "python3"}
        nbformat.write(notebook, self.project / "notebooks" / name)
        return f"notebooks/{name}"


@contextmanager
def running_lab(
    home: Path, project: Path, program: Sequence[str] = ("jupyterlab", "--expose-app-in-browser")
) -> Iterator[Lab]:
    """Serve a project with JupyterLab, or another Jupyter server, that has its settings and files in `home`."""
    for name, content in SETTINGS.items():
        path = home / "settings" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("NBTOOLS_", "JUPYTER"))},
        "NBTOOLS_ROOT": str(project),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "IPYTHONDIR": str(home / "ipython"),
    }
    command = [sys.executable, "-m", *program, "--no-browser", "--allow-root"]
    command += [f"--port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}"]
    log = (home / "server.log").open("wb")
    server = subprocess.Popen(
        command, cwd=project, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )
    started = Lab(project, f"http://127.0.0.1:{port}", token, server, home / "runtime")
    try:

        def answers() -> bool:
            assert server.poll() is None, (home / "server.log").read_text()[-3000:]
            with suppress(OSError):
                return "started" in started.ask("/api/status")
            return False

        eventually(answers)
        yield started
    finally:
        server.terminate()
        try:
            server.wait(timeout=300)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        log.close()
