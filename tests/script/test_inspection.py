"""What is known of a program before it runs: what it is, and who starts its ranks."""

from pathlib import Path

import pytest

import nbtools as nt
from nbtools.errors import LaunchError
from nbtools.launcher.preflight import preflight
from nbtools.project import Project
from nbtools.script.inspection import inspect_program, module_of, python_file
from nbtools.script.program import Program


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# --- what is no Python ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("a.ipynb", '{"cells": []}', r"is a notebook; jupyter nbconvert --to script 'a\.ipynb'"),
        ("run.sh", "A=1\ntorchrun --nproc_per_node 8 src/train.py --lr 1\n", r"nbtools launch src/train\.py -- "),
        ("run.sh", "accelerate launch --config_file a.yaml \\\n  train.py\n", r"nbtools launch train\.py -- "),
        ("run.sh", "accelerate launch --config_file a.yaml train.py\n", r"nbtools launch train\.py -- "),
        ("run.sh", "python3 -u train.py --lr 1\n", r"nbtools launch train\.py -- "),
        ("run.sh", "python -m pkg.train --lr 1\n", r"nbtools launch -m pkg\.train -- "),
        ("run.sh", "deepspeed --num_gpus 2 train.py\n", r"nbtools launch train\.py -- "),
        ("run", "#!/usr/bin/env bash\necho\n", r"is a shell script; launch the Python program that it starts$"),
        ("job.sbatch", "#!/bin/sh\nsrun python train.py\n", r"nbtools launch train\.py -- "),
        ("a.py", "x = (\n", r"a\.py:1: not Python"),
        ("a.py", "x = 1\n\x00", r"not Python"),
        ("train.yaml", "lr: 1\nname: my model\n", r"not Python"),
    ],
)
def test_what_is_no_python_is_refused_with_the_next_step(
    project: Project, name: str, text: str, complaint: str
) -> None:
    path = written(project.root, name, text)
    with pytest.raises(LaunchError, match=complaint):
        nt.launch(path)
    assert not list(project.runs.iterdir())


def test_a_folder_is_answered_with_its_programs_or_its_module(project: Project) -> None:
    written(project.root, "folder/b.py", "")
    written(project.root, "folder/a.py", "")
    with pytest.raises(LaunchError, match=r"is a folder .*: a\.py, b\.py"):
        python_file(project.root / "folder")
    written(project.root, "pkg/__main__.py", "")
    with pytest.raises(LaunchError, match=r"nbtools launch -m pkg$"):
        python_file(project.root / "pkg")
    (project.root / "empty").mkdir()
    with pytest.raises(LaunchError, match="it has none"):
        python_file(project.root / "empty")


def test_an_executable_python_file_of_any_name_is_accepted(project: Project) -> None:
    assert python_file(written(project.root, "train", "#!/usr/bin/env python\nprint(1)\n"))


def test_a_relative_import_is_answered_with_the_module_and_its_folder(project: Project) -> None:
    for package in ("repo/pkg/__init__.py", "repo/pkg/sub/__init__.py"):
        written(project.root, package, "")
    path = written(project.root, "repo/pkg/sub/train.py", "import os\nfrom ..models import Net\n")
    assert module_of(path) == ("pkg.sub.train", project.root / "repo")
    with pytest.raises(LaunchError, match=rf"train\.py:2: .*nbtools launch -m pkg\.sub\.train in {project.root}/repo$"):
        preflight(path)
    checked = preflight(Program(module="pkg.sub.train", cwd=str(project.root / "repo")), gpus=())
    assert checked.source == path


def test_a_relative_import_that_is_tried_or_deferred_is_no_reason_to_refuse(project: Project) -> None:
    text = "try:\n    from .models import Net\nexcept ImportError:\n    Net = None\ndef f():\n    from . import x\n"
    assert inspect_program(written(project.root, "train.py", text)).relative_import_at is None


def test_a_module_may_be_a_package_with_a_main(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.root)
    main = written(project.root, "pkg/__main__.py", "print('step 1 loss 1.5')\n")
    checked = preflight(Program(module="pkg"), gpus=())
    assert checked.source == main
    assert checked.command(Path("/r"))[-3:] == ["-m", "--", "pkg"]
    with pytest.raises(LaunchError, match=r"module=nowhere\.train: is neither in "):
        preflight(Program(module="nowhere.train"), gpus=())


# --- who starts the ranks -------------------------------------------------------------------------------

SPAWNERS = {
    "mp.spawn": "import torch.multiprocessing as mp\nmp.spawn(main, nprocs=2)\n",
    "full name": "import torch\ntorch.multiprocessing.spawn(main, (2,), 2)\n",
    "imported": "from torch.multiprocessing import spawn\nspawn(main, nprocs=2)\n",
    "start_processes": "import torch.multiprocessing as mp\nmp.start_processes(main, nprocs=2, start_method='fork')\n",
    "accelerate": "from accelerate import notebook_launcher\nnotebook_launcher(main, num_processes=2)\n",
    "lightning": "from lightning import Trainer\nTrainer(devices=2, strategy='ddp_spawn').fit(model)\n",
    "fabric": "import lightning as L\nL.Fabric(devices=2, strategy='ddp_fork').launch(main)\n",
    "its own torchrun": "import subprocess\nsubprocess.run(['torchrun', '--standalone', 'worker.py'])\n",
    "torchrun as module": "import subprocess, sys\n"
    "subprocess.Popen([sys.executable, '-m', 'torch.distributed.run', 'worker.py']).wait()\n",
    "elastic_launch": "from torch.distributed.launcher.api import elastic_launch\nelastic_launch(config, main)(1)\n",
    "torchrun main": "from torch.distributed.run import main as torchrun\ntorchrun(['--standalone', 'worker.py'])\n",
    "a fixed world": "import torch.multiprocessing as mp\nimport os\nos.environ['MASTER_ADDR'] = 'localhost'\n"
    "os.environ['MASTER_PORT'] = '12355'\nmp.spawn(main, nprocs=2)\n",
}
RANKS = {
    "DDP": "import torch.distributed as dist\ndist.init_process_group('gloo')\n",
    "either way": "import os, torch.multiprocessing as mp\nif 'LOCAL_RANK' in os.environ:\n    main()\n"
    "else:\n    mp.spawn(main, nprocs=2)\n",
    "getenv": "import os, torch.multiprocessing as mp\nos.getenv('RANK', '') or mp.spawn(main)\n",
    "lightning": "from lightning import Trainer\nTrainer(devices=2, strategy='ddp').fit(model)\n",
    "fabric": "import lightning as L\nfabric = L.Fabric(devices=2)\nfabric.launch()\n",
    "fabric, a function": "import lightning as L\nL.Fabric(devices=2, strategy='ddp').launch(main)\n",
    "trainer": "from transformers import Trainer\nTrainer(model).train()\n",
    "a string": "print('mp.spawn(main) or torchrun worker.py')\n",
    "a pool": "import multiprocessing as mp\nwith mp.Pool(2) as pool:\n    pool.map(tokenize, texts)\n",
    "a subprocess": "import subprocess\nsubprocess.run(['git', 'rev-parse', 'HEAD'])\n",
    "a set start method": "import torch.multiprocessing as mp\nmp.set_start_method('spawn')\n",
    "a generator of seeds": "import numpy as np\nnp.random.SeedSequence(1).spawn(4)\nrng.spawn(2)\n",
    "mlflow": "import server\nserver.launch()\n",
}


@pytest.mark.parametrize("name", SPAWNERS)
def test_a_program_that_starts_its_own_ranks_is_started_once(project: Project, name: str) -> None:
    path = written(project.root, "train.py", SPAWNERS[name])
    checked = preflight(path, nproc_per_node=2, gpus=())
    assert checked.launch.torchrun is False
    assert checked.command(Path("/r"))[1:] == [str(path)]
    assert "starts its own processes" in repr(checked)
    forced = preflight(path, gpus=(), torchrun=True)
    assert forced.launch.torchrun is True
    assert any("torchrun starts it several times" in warning for warning in forced.warnings)


@pytest.mark.parametrize("name", RANKS)
def test_a_program_that_is_one_rank_is_started_by_torchrun(project: Project, name: str) -> None:
    path = written(project.root, "train.py", RANKS[name])
    checked = preflight(path, nproc_per_node=2, gpus=())
    assert checked.launch.torchrun is True
    assert "torch.distributed.run" in checked.command(Path("/r"))
    assert not any("its own processes" in warning for warning in checked.warnings)


JOINED = {
    "a process group": "import torch.distributed as dist\ndist.init_process_group()\n",
    "a variable": "import os\nrank = int(os.environ['RANK'])\n",
    "a trainer": "from transformers import Trainer\nTrainer(model).train()\n",
    "a trainer of its own": "from trl import SFTTrainer\nclass Mine(SFTTrainer):\n    pass\nMine().train()\n",
    "accelerate": "from accelerate import Accelerator\n",
    "Lightning": "import pytorch_lightning as pl\n",
    "a module of the project": "from lib.engine import train\ntrain()\n",
    "an old launcher's argument and its variable": "p.add_argument('--local_rank', default=os.environ['LOCAL_RANK'])\n",
}
APART = {
    "no word of ranks": ("import torch\nprint(1)\n", "names no process group"),
    "DataParallel": ("model = torch.nn.DataParallel(model)\n", "names no process group"),
    "a class of its own": ("class Trainer:\n    pass\nTrainer().train()\n", "no trainer"),
    "an old launcher's argument": (
        "p.add_argument('--local_rank', type=int, default=-1)\nif p.parse_args().local_rank != -1:\n"
        "    torch.distributed.init_process_group('gloo')\n",
        "takes --local_rank, which torchrun does not pass",
    ),
}


@pytest.mark.parametrize("name", JOINED)
def test_ranks_that_something_joins_are_no_separate_trainings(project: Project, name: str) -> None:
    written(project.root, "lib/engine.py", "from lib import group\n")
    written(project.root, "lib/group.py", JOINED["a process group"])
    assert not preflight(written(project.root, "train.py", JOINED[name]), nproc_per_node=2, gpus=()).warnings


@pytest.mark.parametrize("name", APART)
def test_several_ranks_that_nothing_joins_are_separate_trainings(project: Project, name: str) -> None:
    text, why = APART[name]
    path = written(project.root, "train.py", text)
    (warning,) = preflight(path, nproc_per_node=2, gpus=()).warnings
    assert warning.startswith("2 separate trainings, which will overwrite each other's files: train.py ")
    assert why in warning
    assert not preflight(path, gpus=()).warnings
    assert not preflight(path, nproc_per_node=2, gpus=(), torchrun=False).warnings


def test_a_program_that_handles_ctrl_c_alone_is_told_of_the_stop_signal(project: Project) -> None:
    path = written(project.root, "train.py", "try:\n    main()\nexcept KeyboardInterrupt:\n    save()\n")
    assert "--stop-signal SIGINT" in str(preflight(path, gpus=()).warnings)
    assert not preflight(path, gpus=(), stop_signal="SIGINT").warnings


def test_several_machines_need_torchrun(project: Project) -> None:
    path = written(project.root, "train.py", SPAWNERS["mp.spawn"])
    with pytest.raises(LaunchError, match=r"nnodes=2: train\.py starts its own processes"):
        preflight(path, nnodes=2, gpus=())
