"""Programs of the user's that really fail: the cause is shown, whatever the launcher prints below it."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import nbtools as nt
from nbtools.failures.failure import Failure
from nbtools.project import Project
from nbtools.run.run import Run
from nbtools.run.state import RunState

FAKE_AGENT = Path(__file__).parents[1] / "programs" / "fake_agent.py"
RAISES = "raise ValueError('batch 3 has no labels')\n"
PROGRAMS: dict[str, tuple[str, str]] = {
    "an open bar": (
        "import sys, time\nfrom tqdm import tqdm\n"
        "for i in tqdm(range(10), postfix={'loss': 1.5}):\n    time.sleep(0.02)\n    if i == 5:\n        " + RAISES,
        "ValueError: batch 3 has no labels",
    ),
    "an abort at the exit": (
        "import atexit, os\natexit.register(os.abort)\n" + RAISES,
        "ValueError: batch 3 has no labels",
    ),
    "hydra": (
        "import sys, traceback\ntry:\n    " + RAISES + "except ValueError:\n"
        "    print('Error executing job with overrides: []', file=sys.stderr)\n    traceback.print_exc()\n"
        "    print('\\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.', file=sys.stderr)\n"
        "    sys.exit(1)\n",
        "ValueError: batch 3 has no labels",
    ),
    "tyro": (
        "import tyro, dataclasses\n@dataclasses.dataclass\nclass Args:\n    lr: float\n"
        "tyro.cli(Args, args=['--lr', 'x'])\n",
        "Error parsing --lr",
    ),
    "argparse": (
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr', type=float, required=True)\n"
        "parser.parse_args()\n",
        "error: the following arguments are required: --lr",
    ),
    "typer": ("import typer\ndef main(lr: float): ...\ntyper.run(main)\n", "Missing argument '"),
    "click": (
        "import click\n@click.command()\n@click.option('--lr', required=True)\ndef f(lr): ...\nf()\n",
        "Missing option '--lr'",
    ),
    "sys.exit": ("import sys\nsys.exit('the dataset is empty')\n", "the dataset is empty"),
    "a log after the exception": (
        "import atexit\natexit.register(print, 'wandb: Synced 3 files')\n" + RAISES,
        "ValueError: batch 3 has no labels",
    ),
    "logging.exception": (
        "import logging, sys\ntry:\n    "
        + RAISES
        + "except ValueError:\n    logging.exception('failed')\n    sys.exit(1)\n",
        "ValueError: batch 3 has no labels",
    ),
    "the prefix of srun --label": (
        "import sys, traceback\ntry:\n    " + RAISES + "except ValueError as e:\n"
        "    print('\\n'.join('0: ' + line for line in traceback.format_exc().splitlines()), file=sys.stderr)\n"
        "    sys.exit(1)\n",
        "ValueError: batch 3 has no labels",
    ),
    "mp.spawn": (
        "import torch.multiprocessing as mp\n"
        "def main(rank):\n    if rank == 1:\n        raise ValueError('batch 3 has no labels')\n"
        "    import time; time.sleep(60)\n"
        "if __name__ == '__main__':\n    mp.spawn(main, nprocs=2)\n",
        "ValueError: batch 3 has no labels",
    ),
    "mp.spawn, killed": (
        "import os, signal, time, torch.multiprocessing as mp\n"
        "def main(rank):\n    if rank == 1:\n        os.kill(os.getpid(), signal.SIGKILL)\n    time.sleep(60)\n"
        "mp.start_processes(main, nprocs=2, start_method='fork')\n",
        "SIGKILL",
    ),
    "its own torchrun": (
        "import subprocess, sys\nworker = __file__ + '.worker'\nopen(worker, 'w').write('''import os\n"
        'if os.environ["RANK"] == "1":\n    raise ValueError("batch 3 has no labels")\nwhile True: ...\n\'\'\')\n'
        "sys.exit(subprocess.run([sys.executable, '-m', 'torch.distributed.run', '--standalone', "
        "'--nproc-per-node=2', worker]).returncode)\n",
        "ValueError: batch 3 has no labels",
    ),
    "a crash in native code": ("import ctypes\nprint('go')\nctypes.string_at(0)\n", "SIGSEGV"),
    "no GPU": ("import torch\nprint('go')\ntorch.zeros(2).cuda()\n", "Torch not compiled with CUDA enabled"),
    "no keyboard": ("name = input('Continue? ')\n", "EOFError"),
    "no terminal": ("import os\nos.get_terminal_size()\n", "Inappropriate ioctl"),
    "a relative import": (
        "def main():\n    from .models import Net\nmain()\n",
        "attempted relative import with no known parent package",
    ),
    "a missing file": ("open('data/train.csv')\n", "data/train.csv"),
    "a missing module": ("import flash_attention_9\n", "No module named 'flash_attention_9'"),
    "a missing module as the cause": (
        "try:\n    import flash_attention_9\nexcept ImportError as error:\n"
        "    raise RuntimeError('attention needs an extra') from error\n",
        "a package is missing (exited with code 1: RuntimeError: attention needs an extra)",
    ),
    "a missing module that was handled": (
        "try:\n    import flash_attention_9\nexcept ImportError:\n    raise RuntimeError('shapes differ')\n",
        "RuntimeError: shapes differ",
    ),
    "a missing file that was handled": (
        "try:\n    open('data/cache.npy')\nexcept FileNotFoundError:\n    " + RAISES,
        "ValueError: batch 3 has no labels",
    ),
    "a missing program": ("import subprocess\nsubprocess.run(['ffmpeg_nope', '-version'])\n", "a file is missing"),
}

WHERE = {
    "mp.spawn": "in main: raise ValueError",
    "its own torchrun": ".worker:3 in <module>: raise ValueError",
    "a relative import": "in main: from .models import Net",
}
"""Where a program fails, if that is not its line of module level that raises."""
NO_FRAME = {"tyro", "argparse", "typer", "click", "sys.exit", "mp.spawn, killed"}
ADVICE = {
    "no GPU": "torch.device('cuda' if torch.cuda.is_available() else 'cpu')",
    "no keyboard": "Give the answer as an argument",
    "no terminal": "shutil.get_terminal_size()",
    "a relative import": "nbtools launch -m package.train",
    "a missing file": "relative to the working directory, {cwd}:",
    "a missing module": f"runs in {sys.executable}: install it there",
    "a missing module as the cause": f"runs in {sys.executable}: install it there",
    "a missing program": "If it is a program, PATH has to name its folder",
}
RANKS = {"mp.spawn": 1, "mp.spawn, killed": 1, "its own torchrun": 1}
"""Programs that start their own ranks. The others have an agent that prints torchrun's summary."""
Failed = Callable[..., tuple[Run, Failure]]


@pytest.fixture
def failed(cpu_project: Project, supervised: Callable[..., Run]) -> Failed:
    """Run the text of a program to its failure."""

    def run_to_its_end(text: str, *, has_ranks: bool = False) -> tuple[Run, Failure]:
        script, root = cpu_project.root / "theirs.py", str(cpu_project.root)
        script.write_text(f"{text}\n# one of the programs that read their RANK\n")
        if has_ranks:
            run = nt.launch(script, nproc_per_node=2, gpus=())
        else:
            run = supervised(sys.executable, FAKE_AGENT, script, script=str(script), root=root)
        assert run.wait(120, check=False) is RunState.FAILED, run.log()
        assert run.failure is not None
        return run, run.failure

    return run_to_its_end


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_failure_of_a_program_is_what_it_raised_or_said(
    cpu_project: Project, failed: Failed, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(cpu_project.root)
    monkeypatch.setenv("COLUMNS", "200")  # rich breaks a long path into several lines
    text, said = PROGRAMS[name]
    _, failure = failed(text, has_ranks=name in RANKS)
    assert said in failure.message
    assert failure.rank == RANKS.get(name, 0)
    assert all(word not in "\n".join(failure.lines) for word in ("ChildFailedError", "HYDRA_FULL_ERROR", "│", "\x1b"))
    if name in NO_FRAME:
        assert failure.where is None
    else:
        assert WHERE.get(name, "theirs.py:") in (failure.where or "")
    if name in ADVICE:
        assert ADVICE[name].format(cwd=cpu_project.root) in (failure.advice or "")
    elif "SIG" not in said:
        assert failure.advice is None


@pytest.mark.slow
def test_a_benign_traceback_long_before_a_signal_is_not_its_cause(failed: Failed) -> None:
    text = "import logging, os, signal\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    logging.exception('retried')\n"
    text += "print('step 1 loss 1.0\\n' * 5000, flush=True)\nos.kill(os.getpid(), signal.SIGABRT)\n"
    _, failure = failed(text)
    assert failure.message.startswith("killed by SIGABRT")
    assert "ZeroDivisionError" not in failure.message


@pytest.mark.slow
def test_the_last_step_and_loss_of_a_program_come_from_its_curves(failed: Failed) -> None:
    text = "for step in range(1, 8):\n    print(f'step {step}/100 loss {10 - step}.5', flush=True)\n" + RAISES
    run, failure = failed(text)
    assert (failure.step, failure.loss) == (7, 3.5)
    assert "last step 7, train/loss 3.5" in failure.lines
    assert run.summary()["failure"]["loss"] == 3.5
