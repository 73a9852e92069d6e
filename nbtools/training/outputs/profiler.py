"""Some steps under torch's profiler, as a trace for Perfetto and as a table."""

from pathlib import Path

import torch
from torch.profiler import ProfilerActivity

from nbtools.errors import Say
from nbtools.rundir.atomic import write_file

SKIPPED_STEPS = 5
"""The first steps compile, allocate and connect, and are slower than later ones."""
_NUM_ROWS = 25


class Profile:
    """Profiles `num_steps` steps of one rank after the skipped ones, as `folder`/trace.json and table.txt."""

    def __init__(
        self, folder: Path, num_steps: int, device: torch.device, say: Say, num_skipped: int = SKIPPED_STEPS
    ) -> None:
        self._folder = folder
        self._num_steps, self._num_skipped = num_steps, num_skipped
        self._say = say
        self._on_gpu = device.type == "cuda"
        self._num_seen = 0
        self._profiler: torch.profiler.profile | None = None

    def end_step(self) -> bool:
        """Count a step; start after the last skipped one. Return whether the last one was profiled, and written."""
        self._num_seen += 1
        if self._num_seen == self._num_skipped:
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._on_gpu else [])]
            self._profiler = torch.profiler.profile(activities=activities)
            self._profiler.start()
        elif self._profiler is not None:
            if self._num_seen == self._num_skipped + self._num_steps:
                self.close()
                return True
            self._profiler.step()
        return False

    def close(self) -> None:
        """Write the profile of the steps so far."""
        profiler, self._profiler = self._profiler, None
        num_steps = self._num_seen - self._num_skipped
        if profiler is not None:
            profiler.stop()
        if num_steps <= 0:
            why = f"the first {self._num_skipped} steps are skipped, and no more followed"
            self._say(f"note: nothing was profiled: {why}")
        if profiler is None or num_steps <= 0:
            return
        by = "self_device_time_total" if self._on_gpu else "self_cpu_time_total"
        table = profiler.key_averages().table(sort_by=by, row_limit=_NUM_ROWS, max_name_column_width=60)
        text = f"{num_steps} steps after {self._num_skipped} skipped ones, by {by}\n{table}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / "table.txt").write_text(text, encoding="utf-8")
            write_file(self._folder / "trace.json", lambda path: profiler.export_chrome_trace(str(path)))
        except (OSError, RuntimeError) as error:
            self._say(f"warning: the profile was not written: {error}")
        self._say(f"{text}\nprofile: open {self._folder / 'trace.json'} in https://ui.perfetto.dev")
