"""Ranks started by srun, mpirun, mpiexec or flux, and processes that would share a run without being asked to."""

import gc
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nbtools.config import Launch
from nbtools.errors import LaunchError
from nbtools.project import Project
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.json_files import read_json
from nbtools.rundir.rundir import RunDir, run_folders
from nbtools.script.script import write_script
from nbtools.training import fast_imports
from nbtools.training.process.rank_environment import adopt_rank

from forked_rank import launched_ranks
from trainings import ByHand, by_hand, free_port, rows

SLURM = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"}
ONE_NODE = {**SLURM, "SLURM_STEP_NUM_NODES": "1", "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "2"}
OMPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "prterun-host-123@1"}


def srun(rank: int, **more: str) -> dict[str, str]:
    return {**ONE_NODE, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), **more}


def mpirun(rank: int, **more: str) -> dict[str, str]:
    return {**OMPI, "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank), **more}


def adopted(environment: dict[str, str]) -> tuple[str, ...]:
    """The six variables that torch reads, afterwards."""
    adopt_rank(environment, "x.py", is_known=lambda host: True)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return tuple(environment.get(name, "") for name in names)


@pytest.mark.promise("safety-launchers")
@pytest.mark.parametrize("of", [srun, mpirun])
def test_processes_on_one_node_become_ranks(of: Callable[..., dict[str, str]]) -> None:
    first, second = adopted(of(0)), adopted(of(1))
    assert (first[:5], second[:5]) == (("0", "2", "0", "2", "127.0.0.1"), ("1", "2", "1", "2", "127.0.0.1"))
    assert first[5] == second[5]
    assert 1024 < int(first[5]) < 32768
    assert adopted(of(0, MASTER_ADDR="head", MASTER_PORT="7"))[4:] == ("head", "7")
    assert adopted(of(1, PMI_RANK="1", PMI_SIZE="2")) == second, "Slurm's plugin pmi2 sets these, too"


def test_processes_on_several_nodes_find_the_first_of_them() -> None:
    nodes = {"SLURM_STEP_NUM_TASKS": "5", "SLURM_STEP_NUM_NODES": "3", "SLURM_STEP_TASKS_PER_NODE": "2(x2),1"}
    nodes |= {"SLURM_PROCID": "4", "SLURM_LOCALID": "0", "SLURM_NODEID": "2"}
    for listed, head in (("gpu[07-08,11]", "gpu07"), ("a1,a2,b", "a1"), ("n[1-3]-ib", "n1-ib")):
        assert adopted({**SLURM, **nodes, "SLURM_STEP_NODELIST": listed})[:5] == ("4", "5", "0", "1", head)
    flux = {"FLUX_TASK_RANK": "3", "FLUX_JOB_SIZE": "4", "FLUX_TASK_LOCAL_ID": "1", "FLUX_JOB_NNODES": "2"}
    flux |= {"FLUX_JOB_ID": "f2"}
    assert adopted({**flux, "MASTER_ADDR": "head"})[:5] == ("3", "4", "1", "2", "head")
    with pytest.raises(LaunchError, match="flux run started 4 processes"):
        adopted(flux)


def test_a_first_node_without_an_address_is_refused_with_what_to_set() -> None:
    nodes = {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_STEP_NODELIST": "n[1-2].invalid"}
    with pytest.raises(LaunchError, match=r"does not know the address of n1\.invalid.*set MASTER_ADDR"):
        adopt_rank(srun(1, **nodes, SLURM_NODEID="1", SLURM_LOCALID="0"), "x.py")
    known = srun(1, **nodes, SLURM_NODEID="1", SLURM_LOCALID="0", MASTER_ADDR="127.0.0.1")
    adopt_rank(known, "x.py")
    assert known["MASTER_ADDR"] == "127.0.0.1"


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", **srun(0)},  # torchrun under srun
        {**srun(0), "SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "7"},  # a batch script itself
        {"PMI_RANK": "0", "PMI_SIZE": "1"},
    ],
)
def test_a_single_process_and_ranks_of_torchrun_stay_what_they_are(environment: dict[str, str]) -> None:
    before = dict(environment)
    adopt_rank(environment, "x.py")
    assert environment == before


def test_a_missing_local_rank_is_that_of_the_launcher() -> None:
    wrapped = {"RANK": "5", "WORLD_SIZE": "8", "MASTER_ADDR": "head", "MASTER_PORT": "7"}
    assert adopted({**wrapped, **srun(1)}) == ("5", "8", "1", "", "head", "7")
    assert adopted({**wrapped, **mpirun(3)})[2] == "3"
    assert adopted({**wrapped, **srun(1), "LOCAL_RANK": "2"})[2] == "2"
    assert adopted(wrapped)[2] == "", "nothing says it"


@pytest.mark.promise("safety-launchers")
@pytest.mark.parametrize(
    "environment",
    [
        {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"},
        {"PMI_RANK": "0", "PMI_SIZE": "2"},
        {"PMIX_RANK": "0", "PMIX_SIZE": "2"},
        {**srun(0), "SLURM_PROCID": "x"},
    ],
)
def test_processes_that_cannot_find_one_another_are_refused_in_words(environment: dict[str, str]) -> None:
    with pytest.raises(LaunchError, match=r"a model of its own.*torchrun --standalone --nproc-per-node=2 x.py"):
        adopt_rank(environment, "x.py")


@pytest.fixture
def start(texts: Project, tiny_config: Callable[..., Any]) -> Iterator[ByHand]:
    """Start a script of two steps."""
    with by_hand(texts) as started:
        write_script(tiny_config(max_steps=2), "tiny", Launch(gpus=()), project=texts)
        yield started


@pytest.mark.promise("safety-launchers")
@pytest.mark.parametrize("of", [srun, mpirun])
def test_two_processes_of_a_cluster_launcher_train_one_model(start: ByHand, of: Callable[..., dict[str, str]]) -> None:
    port = str(free_port())
    codes, said = start.ended(start.script, variables=[of(rank, MASTER_PORT=port) for rank in range(2)])
    assert codes == [0, 0], said
    (folder,) = run_folders(start.project.runs)
    run = Run(folder)
    assert run.state is RunState.SUCCEEDED
    assert (run.config or {})["derived"]["world_size"] == 2
    assert [row["step"] for row in rows(run.files) if "train/loss" in row] == [1, 2]


@pytest.mark.promise("safety-launchers")
def test_two_processes_that_would_be_rank_0_of_one_run_are_not(start: ByHand) -> None:
    files = RunDir.create(start.project.runs, "tiny")
    launched = {"NBTOOLS_RUN_DIR": str(files.path), "NBTOOLS_RUN_ID": files.id}
    codes, said = start.ended(start.script, variables=[launched, launched])
    assert {*codes} == {0, 1}, said
    assert "is rank 0 of this run, and this process would write the same files" in said
    assert [row["step"] for row in rows(files) if "train/loss" in row] == [1, 2]
    assert start.ended(start.script, variables=[{**launched, "NBTOOLS_ATTEMPT": "2"}])[0] == [0]
    assert (read_json(files.finished) or {})["why"] == "completed"


ELSEWHERE = """
from nbtools.training.engine import standalone
standalone._APPEARS_WITHIN_S = 1.0
if os.environ["RANK"] == "1":
    scandir = os.scandir
    def away(path): return isinstance(path, (str, os.PathLike)) and "/runs/" in os.fspath(path)
    def gone(path): raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
    os.listdir = lambda path=".", real=os.listdir: gone(path) if away(path) else real(path)
    os.scandir = lambda path=".": gone(path) if away(path) else scandir(path)
"""
"""Before the script starts: rank 1 is on a node that does not see the runs."""


@pytest.mark.promise("safety-shared-disk")
def test_nodes_without_a_shared_disk_are_told_what_to_share(start: ByHand) -> None:
    start.script.write_text(f"import os\n{ELSEWHERE}\n{start.script.read_text()}")
    codes, said = start.ended(start.script, variables=launched_ranks(2, free_port(), per_node=1))
    assert codes == [1, 1]
    assert said.count("DataError") >= 2, said
    assert f"{socket.gethostname()}: does not see {start.project.runs}" in said
    assert "on a shared file system under one path" in said
    assert not list(start.project.runs.glob("*/ranks/.shared-*"))


def test_the_collector_is_off_for_imports_only_even_if_one_fails() -> None:
    was_on = []
    with pytest.raises(ZeroDivisionError), fast_imports():
        was_on.append(gc.isenabled() or 1 / 0)
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0
    gc.unfreeze()
    assert not was_on
