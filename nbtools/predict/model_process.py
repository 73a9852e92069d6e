"""A trained model in a child process, on a device that no training holds."""

import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from nbtools.errors import CheckpointError, ConfigError, LaunchError, ProjectError
from nbtools.launcher.resume import checkpoint_for, config_of
from nbtools.machine import devices, gpu_queue
from nbtools.recipes.predict_settings import Input, PredictSettings, settings_of
from nbtools.run.checkpoints import Checkpoint
from nbtools.run.run import Run
from nbtools.rundir.rundir import project_of

_LONGEST_TRACE = 2000
_PATIENCE_S = 5.0


class ModelProcess(contextlib.AbstractContextManager["ModelProcess"]):
    """A process that has loaded a checkpoint's model and answers until it is closed.

    Args:
        run: the run, or what names it; it may still train.
        checkpoint: a name such as `step-000200`, or its step; None for the latest verified one.
        device: `cpu` or `cuda`; None for a GPU that no process holds, else the CPU.
        trust_remote_code: run the Python code that comes with the model, where it has some; what the run's directory
            says does not count.

    Raises:
        CheckpointError: the checkpoint is missing or damaged, or its model has code that may not run.
        ConfigError: the device is none, or the run's config cannot be read.
        LaunchError: the run has no checkpoint, no GPU is free, or the process ended.
    """

    def __init__(
        self,
        run: Run | str,
        checkpoint: str | int | None = None,
        *,
        device: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        self.run = run if isinstance(run, Run) else Run(run)
        self.settings = settings_of(config_of(self.run))
        """Default settings of a prediction."""
        self.device, selector = _free_device(device)
        """Name of the device, for messages."""
        self._numbers = itertools.count(1)
        while True:
            self.checkpoint = _chosen(self.run, checkpoint)
            self._log = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
            self._process = _started(self.checkpoint, selector, self._log, trust_remote_code)
            try:
                answer = self._answer()
            except BaseException:  # also an interrupt while the model is loaded
                self.close()
                raise
            if "error" not in answer:
                break
            self.close()
            if checkpoint is not None or self.checkpoint.path.exists():
                raise CheckpointError(f"{self.run.id}, {self.checkpoint.name}: {answer['error']}")
            # The training removed it while it was opened: the next one is newer.
        self.ready: dict[str, Any] = answer["ready"]
        """`step`, `device` and `parameters` of the loaded model."""
        if selector and self.ready["device"] == "cpu":
            self.device = "the CPU: torch cannot use the GPUs of this machine"

    def predict(self, inputs: Sequence[Input], settings: PredictSettings | None = None) -> Iterator[dict[str, Any]]:
        """Yield one row of JSON values for each input, in order; one with `error` if the input cannot be read.

        Raises:
            ConfigError: the model refuses the settings.
            LaunchError: the process has ended.
        """
        number = next(self._numbers)
        self._ask({"id": number, "inputs": list(inputs), "settings": (settings or self.settings).model_dump()})
        while True:
            answer = self._answer()
            if answer.pop("id", number) != number:
                continue  # of a request whose rows were not all read
            if "done" in answer:
                return
            if "index" not in answer:
                raise ConfigError(str(answer["error"]))
            del answer["index"]
            yield answer

    def close(self) -> None:
        """End the process; closing twice is the same as once."""
        assert self._process.stdin and self._process.stdout
        self._process.kill()  # it keeps no results, so it needs no graceful stop
        if self._exit_code() is None:
            warnings.warn(f"process {self._process.pid} of the model was killed and has not ended yet", stacklevel=2)
        for stream in (self._process.stdin, self._process.stdout, self._log):
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, request: dict[str, Any]) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            raise self._ended() from None

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise self._ended()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _exit_code(self) -> int | None:
        """Wait some seconds for the process's end; None if it has not ended, as on a loaded machine, or in a driver."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE_S)
        return self._process.returncode

    def _ended(self) -> LaunchError:
        if self._log.closed:
            return LaunchError("the process of the model has ended: it was closed")
        code = self._exit_code()
        self._log.seek(0)
        told = self._log.read()[-_LONGEST_TRACE:].decode(errors="replace").strip().splitlines()
        how = "closed its output, but has not ended" if code is None else f"ended (exit code {code})"
        return LaunchError(f"the process of the model {how}: {told[-1] if told else 'no output'}")


def _chosen(run: Run, checkpoint: str | int | None) -> Checkpoint:
    found = checkpoint_for(run, checkpoint, "predict with")
    if found.path.exists() and not (found.path / "model").is_dir():  # one that was just removed: see the caller
        raise CheckpointError(f"{run.id}, {found.name}: has no folder model/; choose another checkpoint")
    return found


def _free_device(asked: str | None) -> tuple[str, str]:
    """Return the device in words, and its entry for CUDA_VISIBLE_DEVICES."""
    if asked not in (None, "cpu", "cuda"):
        raise ConfigError(f"device={asked[:80]!r}: must be cpu or cuda")
    if asked == "cpu" or not (found := devices.devices()):
        if asked == "cuda":
            raise LaunchError("device=cuda: this machine has no usable GPU; leave the device out for the CPU")
        return "the CPU", ""
    queued = gpu_queue.tickets()
    if free := next((device for device in found if not gpu_queue.users_of(device, queued)), None):
        return f"GPU {free.index} ({free.name})", free.selector
    if asked == "cuda":
        raise LaunchError("device=cuda: other processes hold all GPUs; leave the device out for the CPU, or wait")
    return "the CPU: other processes hold all GPUs", ""


def _started(checkpoint: Checkpoint, selector: str, log: Any, trust_remote_code: bool) -> "subprocess.Popen[bytes]":
    words = [sys.executable, "-P", "-m", "nbtools.training", str(checkpoint.path.resolve())]
    run = checkpoint.path.resolve().parent.parent
    folder = run.parent
    with contextlib.suppress(ProjectError):
        folder = project_of(run / "script.py").root  # relative names of models are meant from here
    return subprocess.Popen(
        [*words, "--device", "cuda" if selector else "cpu", *["--trust-remote-code"][:trust_remote_code]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        cwd=folder,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": selector},
        start_new_session=True,  # Ctrl-C ends the reader, which closes it
    )
