"""CPU seconds of listing, finding and removing 5,000 runs, of 10,000 metric names, and of long lineages.

python tests/benchmarks/bench_scale.py [runs] [names] [lineage]
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rounds import cpu

sys.path.insert(0, str(Path(__file__).parents[1]))
from run_folder import RunFolder

from nbtools.cli.commands import main as nbtools
from nbtools.notebook.board.board import Board
from nbtools.notebook.board.runs import runs
from nbtools.project import Project
from nbtools.run.listing import active_run
from nbtools.run.removal import clean
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.json_files import write_json
from nbtools.rundir.names import find_run
from nbtools.rundir.rundir import RunDir

NUM_RUNS, NUM_NAMES = 5_000, 10_000


def end_run(runs: Path, number: int, num_rows: int = 40, parent: str | None = None) -> RunDir:
    """Write an ended run: completed, stopped, failed, or killed without a record of rank 0, in turns."""
    at = 1.7e9 + 900 * number  # as many as people start, a quarter of an hour apart
    run = RunDir(runs / time.strftime("%Y-%m-%d_%H%M%S_run", time.localtime(at)))
    launch: dict[str, object] = {"name": "run", "script_sha256": "0"}
    if parent is not None:
        launch["resumed_from"] = {"run": parent, "step": num_rows // 2 * number, "checkpoint": "step-000001"}
    folder = RunFolder(run, at, total_steps=100_000, **launch)
    run.lock.touch()
    write_json(run.process, {"pid": 1, "start_time": 1.0, "boot_id": "-", "host": "-"})
    first = number * (num_rows // 2) + 1 if parent is not None else 1
    steps = range(first, first + num_rows)
    folder.write([{"step": step, "time": 1.7e9 + step, "train/loss": 1 / step} for step in steps])
    folder.say("started\n")
    folder.beat(0, steps[-1], "done")
    folder.checkpoint(first, at=1.7e9)
    why = ("completed", "stopped", "failed", None)[number % 4]
    if why is not None:
        write_json(run.finished, {"why": why, "step": steps[-1], "metrics": {"train/loss": 1.0}})
    folder.end(int(why != "completed"), stopped=why == "stopped", at=at + 600)
    return run


def measure_runs(folder: Path) -> None:
    """Measure the commands on 5,000 runs."""
    project = Project(folder)
    project.scripts.mkdir()
    (folder / "pyproject.toml").touch()
    script = project.script("run")
    script.write_text("")
    for number in range(NUM_RUNS):
        end_run(project.runs, number)

    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")

    def fork(action: Callable[[], int]) -> None:
        """Run an action in a process of its own, where modules are loaded and no run is known."""
        if (pid := os.fork()) == 0:
            os.chdir(folder)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os._exit(action())
        assert os.waitpid(pid, 0)[1] == 0

    def call(*words: str) -> None:
        """Call the command line."""
        fork(lambda: nbtools(words))

    def show() -> int:
        """Show the board of all runs, until the rows on the page are read."""
        board = Board([runs(project)])
        while len(board._lines.values) < len(board._lines.watched):
            time.sleep(0.01)
        return 0

    for what, goal in (("cold", 0.5), ("warm", 0.5), ("warm", 0.5)):
        print(f"nt.runs() as a board, {what}     {cpu(lambda: fork(show)):>7.2f} CPU s (at most {goal})")
    for words in (["runs"], ["runs", "--state", "FAILED"], ["runs", "--all"], ["runs", "--all", "--json"], ["clean"]):
        print(f"nbtools {' '.join(words):<22} {cpu(lambda words=words: call(*words)):>7.2f} CPU s")  # type: ignore[misc]
    newest = find_run(project.runs, "latest").name
    for what, ref in (("latest", "latest"), ("an id", newest), ("a prefix", newest[:17])):
        print(f"find {what:<25} {cpu(lambda ref=ref: find_run(project.runs, ref)):>7.3f} CPU s")  # type: ignore[misc]
    print(f"active_run (Launch)            {cpu(lambda: active_run(script, project)):>7.2f} CPU s")
    plans = []
    planned = cpu(lambda: plans.append(clean.plan_removal(project.runs, states=[RunState.FAILED])))
    print(f"clean: plan {len(plans[0].items):>5,} runs         {planned:>7.2f} CPU s")
    print(f"clean: remove them             {cpu(lambda: clean.remove(plans[0])):>7.2f} CPU s")


def measure_names(folder: Path) -> None:
    """Measure a run with 10,000 metric names."""
    run = end_run(folder, 0)
    values = {f"layer_{number}/norm": float(number) for number in range(NUM_NAMES)}
    run.metrics.write_text("".join(json.dumps({"step": step, **values}) + "\n" for step in (1, 2, 3)))
    found = Run(run.path)
    print(f"reading 3 rows x {NUM_NAMES:,}        {cpu(lambda: found.own_history):>7.2f} CPU s")
    print(f"Run.metrics                    {cpu(lambda: found.metrics):>7.3f} CPU s (at most 0.1)")
    print(f"History.pace                   {cpu(found.own_history.pace):>7.3f} CPU s")


def measure_lineage(folder: Path) -> None:
    """Measure the joined curve of runs that were resumed 150 and 500 times."""
    parent = None
    for number in range(501):
        parent = end_run(folder, number, num_rows=200, parent=parent).id
    for number in (150, 500):
        run = Run(next(path for path in folder.iterdir() if path.name.endswith(f"{number % 60:02d}_run")
                  and path.name[11:15] == f"{number // 3600:02d}{number // 60 % 60:02d}"))  # fmt: skip
        took = cpu(lambda run=run: run.history)  # type: ignore[misc]
        print(f"history after {number} resumes      {took:>7.2f} CPU s, {run.history.num_rows:,} rows")


if __name__ == "__main__":
    for name in sys.argv[1:] or ["runs", "names", "lineage"]:
        with tempfile.TemporaryDirectory() as folder:
            globals()[f"measure_{name}"](Path(folder))
