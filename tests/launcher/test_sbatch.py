"""Launches as Slurm jobs: the job script, the submission, and what a login node can check."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import time
import warnings
from importlib.metadata import distribution
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fixture_types import Configs, MonkeyPatch, Start
from packaging.requirements import Requirement

import nbtools
from nbtools.config import Launch, Slurm
from nbtools.errors import ConfigError, LaunchError
from nbtools.launcher.launch import create_run, launch, launch_once, start
from nbtools.launcher.preflight import check_launch, preflight
from nbtools.launcher.request import LaunchRequest
from nbtools.launcher.sbatch import (
    SlurmFlags,
    check_site,
    job_script,
    on_cluster,
    place_job,
    script_text,
    seconds_of,
    site_defaults,
    site_file,
)
from nbtools.machine import slurm
from nbtools.machine.file_systems import local_disk
from nbtools.project import Project
from nbtools.run.run import Run
from nbtools.run.state import waiting_for
from nbtools.rundir.json_files import read_json
from nbtools.rundir.rundir import RunDir
from nbtools.script.script import write_script

from slurm_cluster import SlurmCluster

ALL = Slurm(
    partition="gpu,short",
    account="lab-7",
    qos="high",
    time_limit="2-12",
    gpus_per_node="a100:4",
    cpus_per_task=32,
    mem="64G",
    constraint="a100&nvlink",
    preamble="module load cuda/12.4\nexport X='a b'",
    requeue=False,
)


def options(text: str) -> dict[str, str]:
    """Read the options of a job script."""
    lines = (line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH "))
    return dict((*line.split("=", 1), "")[:2] for line in lines)


def is_bash(text: str) -> bool:
    return subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


# --- the job script ---------------------------------------------------------------------------------


def test_a_job_script_has_every_setting_and_ends_with_the_supervisor(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "2026-01-01_000000_x")
    text = job_script(run, Launch(nnodes=2, nproc_per_node=4, cluster=ALL), tmp_path, after=[71, 70])
    assert options(text) == {
        "job-name": run.id,
        "nodes": "2",
        "ntasks-per-node": "1",
        "gpus-per-node": "a100:4",
        "cpus-per-task": "32",
        "mem": "64G",
        "partition": "gpu,short",
        "account": "lab-7",
        "qos": "high",
        "constraint": "a100&nvlink",
        "time": "2-12",
        "signal": "B:TERM@90",
        "open-mode": "append",
        "no-requeue": "",
        "chdir": str(tmp_path),
        "output": str(run.job_log),
        "dependency": "afterany:71:70",
    }
    last = text.splitlines()[-1]
    assert last.startswith("exec /") and last.endswith(f" -P -m nbtools.launcher.job {run.path}")
    assert text.index("set -e\nmodule load cuda/12.4\nexport X='a b'\n\nexec ") > text.index("trap ")
    assert is_bash(text)


def test_a_job_script_leaves_the_rest_to_the_site(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "r")
    found = options(job_script(run, Launch(nproc_per_node=2, cluster=Slurm()), tmp_path))
    assert found["gpus-per-node"] == "2" and "requeue" in found
    assert not found.keys() & {"partition", "account", "qos", "constraint", "time", "cpus-per-task", "mem"}
    on_cpu = options(job_script(run, Launch(nproc_per_node=2, cluster=Slurm(gpus_per_node=0)), tmp_path))
    assert "gpus-per-node" not in on_cpu


def test_a_script_for_sbatch_is_readable_and_names_the_interpreter() -> None:
    text = script_text("tiny", Launch(cluster=ALL))
    assert options(text)["job-name"] == "tiny" and "chdir" not in options(text) and is_bash(text)
    code = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert code[:3] == ["set -e", "module load cuda/12.4", "export X='a b'"]
    assert len(code) == 4 and code[3].endswith("/python -P -m nbtools.launcher.job scripts/tiny.py")


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [("30", 1800), ("1:30", 90), ("8:00:00", 28800), ("2-12", 216_000), ("1-2:3:4", 93_784), ("0", None), (None, None)],
)
def test_time_limits_are_read_as_sbatch_reads_them(limit: str | None, seconds: int | None) -> None:
    assert seconds_of(limit) == seconds


# --- refusals ---------------------------------------------------------------------------------------


@pytest.fixture
def script(project: Project) -> Path:
    path = project.scripts / "say.py"
    path.write_text("import os; print('ran in', os.environ['NBTOOLS_RUN_ID'])\n")
    return path


def checked(script: Path, **values: Any) -> Any:
    args = values.pop("args", ())
    cluster = Slurm(**{"gpus_per_node": 0, **values})
    return check_launch(LaunchRequest(script=script, args=args, settings={"cluster": cluster}))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"time_limit": "1"}, r"time_limit=1: is 60 s, .*90 s before it.*shutdown_timeout_s=60"),
        ({"preamble": "true\nif then"}, r"preamble: is not bash: line 2:"),
    ],
)
def test_settings_that_no_job_can_have_are_refused(script: Path, settings: dict[str, str], said: str) -> None:
    with pytest.raises(LaunchError, match=said):
        checked(script, **settings)


def test_a_secret_in_the_preamble_warns(script: Path) -> None:
    (warning,) = checked(script, preamble="export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567").warnings
    assert "looks like a secret" in warning and "in the shell that launches" in warning


def test_a_path_that_sbatch_cannot_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"backslash or control characters"):
        job_script(RunDir(tmp_path / "a\nb"), Launch(cluster=Slurm()), tmp_path)


def test_a_launch_without_sbatch_leaves_nothing(script: Path, project: Project, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LaunchError, match=r"sbatch and squeue are not on the path of .*--cluster none") as refused:
        start(checked(script))
    assert preflight(script, cluster=Slurm()).problems == (str(refused.value),)
    assert not list(project.runs.iterdir())


@pytest.mark.needs("slurm")
@pytest.mark.parametrize("conf", [None, "/nowhere/slurm.conf"])
def test_a_machine_without_a_cluster_is_told(
    script: Path, project: Project, monkeypatch: MonkeyPatch, conf: str | None
) -> None:
    if conf is not None:
        monkeypatch.setenv("SLURM_CONF", conf)
    with pytest.raises(LaunchError, match=r"^cluster=Slurm\(...\): no Slurm cluster is configured on .*--cluster none"):
        start(checked(script))
    assert not list(project.runs.iterdir())


# --- a real Slurm -----------------------------------------------------------------------------------


@pytest.mark.needs("slurm")
def test_a_launch_is_a_job_with_the_name_of_its_run(script: Path, slurm_cluster: SlurmCluster) -> None:
    run = start(checked(script, args=["--x", "1"], preamble="sleep 600"))
    known = read_json(run.files.slurm) or {}
    assert slurm_cluster.call("squeue", "-h", "-j", str(known["job_id"]), "-o", "%j") == run.id
    info = run.info
    assert info["argv"] == [str(script), "--x", "1"] and info["env"]["NBTOOLS_RUN_ID"] == run.id
    assert info["launch"]["cluster"]["gpus_per_node"] == 0 and "ticket" in info


@pytest.mark.promise("slurm-refusal")
@pytest.mark.needs("slurm")
@pytest.mark.filterwarnings("ignore::UserWarning")  # such as drained nodes, where sbatch itself refuses the job
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"partition": "nowhere"}, "partition=nowhere: .*; change (partition|one of them) in the form"),
        ({"constraint": "no_such"}, "constraint=no_such: .*; change (constraint|one of them) in the form"),
        ({"gpus_per_node": "h100:1"}, "gpus_per_node=h100:1: .*; change (gpus_per_node|one of them) in the form"),
        ({"mem": "900G"}, "mem=900G: .*; change (mem|one of them) in the form"),
        ({"cpus_per_task": 5}, "cpus_per_task=5"),
        ({"gpus_per_node": 3}, "gpus_per_node=3"),
    ],
)
def test_a_refusal_names_the_setting_also_while_nodes_are_drained(
    script: Path, project: Project, slurm_cluster: SlurmCluster, settings: dict[str, Any], said: str
) -> None:
    slurm_cluster.call("scontrol", "update", "nodename=n2", "state=drain", "reason=test")
    with pytest.raises(LaunchError, match=said) as refused:
        launch(script, cluster=Slurm(**{"gpus_per_node": 0, **settings}))
    assert "Slurm refuses the job" in str(refused.value)
    assert not list(project.runs.iterdir())


@pytest.mark.needs("slurm")
def test_several_clusters_are_refused(script: Path, slurm_cluster: SlurmCluster, monkeypatch: MonkeyPatch) -> None:
    with monkeypatch.context() as changed:
        changed.setenv("SLURM_CLUSTERS", "one,two")
        (problem,) = preflight(script, cluster=Slurm(gpus_per_node=0)).problems
    assert re.match("SLURM_CLUSTERS=one,two: names several clusters.*set SLURM_CLUSTERS to", problem)


@pytest.mark.promise("slurm-submission")
@pytest.mark.needs("slurm")
def test_an_interrupt_leaves_no_job(
    script: Path, project: Project, slurm_cluster: SlurmCluster, monkeypatch: MonkeyPatch
) -> None:
    real = slurm.submit

    def interrupted(*args: Any) -> Any:
        real(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(slurm, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start(checked(script, preamble="sleep 600"))
    assert not list(project.runs.iterdir())
    assert slurm_cluster.call("squeue", "-h", "-t", "PENDING,RUNNING", "-o", "%j") == ""


@pytest.mark.needs("slurm")
@pytest.mark.parametrize(
    ("preamble", "said"),
    [
        ("echo 'a \"b\" \\n %s'; ls /no/such/ä", r"in line \d+ \(ls /no/such/"),
        ("exit 0", "with exit code 1"),
        ("cat <<END\nnever ended", "with exit code 1"),
    ],
)
def test_a_failing_preamble_is_the_cause(script: Path, slurm_cluster: SlurmCluster, preamble: str, said: str) -> None:
    run = start(checked(script, preamble=preamble))
    slurm_cluster.wait_until((read_json(run.files.slurm) or {})["job_id"], "COMPLETED", "FAILED")
    ended = json.loads(run.files.exit.read_text())
    assert ended["returncode"] != 0 and not ended["stopped"] and run.state == "FAILED"
    failure = run.failure
    assert failure is not None and "the job script failed" in failure.message
    assert re.search(said, failure.message)
    assert "nbtools: the job script failed" in run.files.job_log.read_text()


@pytest.mark.needs("slurm")
def test_an_odd_path_reaches_the_job(tmp_path: Path, slurm_cluster: SlurmCluster, monkeypatch: MonkeyPatch) -> None:
    root = tmp_path / "a b'c\"d%j#e$HOME`"
    (root / "scripts").mkdir(parents=True)
    (root / "runs").mkdir()
    monkeypatch.setenv("NBTOOLS_ROOT", str(root))
    monkeypatch.chdir(root)
    path = root / "scripts" / "say.py"
    path.write_text("pass\n")
    run = start(checked(path, preamble='pwd; [ "$NBTOOLS_RUN_DIR" = "$_nbtools_run" ]; exit 3'))
    slurm_cluster.wait_until((read_json(run.files.slurm) or {})["job_id"], "COMPLETED", "FAILED")
    assert run.files.job_log.read_text().splitlines()[0] == str(root)
    assert (read_json(run.files.exit) or {})["returncode"] == 3


def test_a_job_by_hand_gets_the_same_run_directory(script: Path) -> None:
    run = create_run(checked(script, args=["--hf-token", "hf_0123456789abcdefghij"]))
    content = read_json(run.launch) or {}
    assert content["env"]["NBTOOLS_RUN_DIR"] == str(run.path) and content["launch"]["cluster"]["requeue"] is True
    assert run.lock.is_file() and run.script.read_bytes() == script.read_bytes() and not run.job_script.exists()
    assert content["args"] == ["--hf-token", "***"] and "hf_0123" not in run.launch.read_text()


# --- where a launch runs ----------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: MonkeyPatch) -> Path:
    """The user's file with the site's defaults, which does not exist yet."""
    monkeypatch.setenv("NBTOOLS_CONFIG_DIR", str(tmp_path))
    assert site_file() == tmp_path / "slurm.toml"
    return site_file()


def test_a_call_says_where_a_launch_runs(site: Path) -> None:
    site.write_text('partition = "low"\nrequeue = false\n')
    here, there = Launch(nproc_per_node=2, gpus=(2, 5)), Launch(cluster=Slurm(qos="q", gpus_per_node=0))
    assert on_cluster(here, None) == here and on_cluster(here, "none") == here and on_cluster(there, "slurm") == there
    on_site = Launch(nproc_per_node=2, cluster=Slurm(partition="low", requeue=False, gpus_per_node=2))
    assert on_cluster(here, "slurm") == on_site
    assert on_cluster(there, "none") == Launch(gpus=())
    assert on_cluster(there, SlurmFlags({"mem": "1G"})).cluster == Slurm(qos="q", gpus_per_node=0, mem="1G")
    assert on_cluster(Launch(), SlurmFlags({"mem": "1G"}, is_asked=True)).cluster == site_defaults().replace(mem="1G")
    with pytest.raises(LaunchError, match=r"mem=1G: is for Slurm, .*add --cluster slurm"):
        on_cluster(Launch(), SlurmFlags({"mem": "1G"}))
    with pytest.raises(LaunchError, match=r"cluster=3: must be Slurm"):
        on_cluster(Launch(), 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('partitoin = "a"', r"slurm.toml: 'partitoin': Slurm has no such field; did you mean partition"),
        ('mem = "lots"', r"slurm.toml: mem='lots': must be a number and a unit"),
        ("mem = ", r"slurm.toml: cannot be read: Invalid value"),
        ('shared_paths = "/home"', r"slurm.toml: shared_paths='/home': must be a list of absolute paths"),
        ('shared_paths = ["home"]', r"slurm.toml: shared_paths=\['home'\]: must be a list of absolute paths"),
    ],
)
def test_a_wrong_site_file_is_refused_with_file_and_key(site: Path, text: str, said: str) -> None:
    site.write_text(text)
    with pytest.raises(ConfigError, match=said):
        site_defaults()


@pytest.mark.needs("slurm")
def test_preflight_tells_the_expected_start_and_the_settings(script: Path, slurm_cluster: SlurmCluster) -> None:
    text = str(preflight(script, cluster=Slurm(partition="high", gpus_per_node=0, time_limit="30"), nproc_per_node=2))
    assert "1 node with 2 processes each; the CPU on each node" in text
    assert "partition=high, time_limit=30; the site's default for account, cpus_per_task, mem" in text
    assert "to start at" in text and "sbatch runs/ID/job.sbatch" in text
    assert "shutdown_timeout_s=60, and Slurm kills 30 s after scancel" in text
    longer = preflight(script, cluster=Slurm(gpus_per_node=0), shutdown_timeout_s=90).warnings
    assert any("a checkpoint that takes longer than 30 s is lost" in warning for warning in longer)
    warned = preflight(script, cluster=Slurm(gpus_per_node=0), nnodes=9).warnings
    assert any("cannot start the job now: " in warning and "node configuration" in warning for warning in warned)


@pytest.mark.parametrize(("num_gpus", "cpus", "warns"), [(2, None, True), (2, 16, False), (0, None, False)])
def test_gpus_without_cores_are_a_warning(num_gpus: int, cpus: int | None, warns: bool, script: Path) -> None:
    cluster = Slurm(gpus_per_node=num_gpus, cpus_per_task=cpus)
    found = place_job(Launch(nproc_per_node=2, cluster=cluster)).findings
    assert [one.level for one in found if one.subject == "cores"] == ["warn"] * warns


@pytest.mark.promise("slurm-drained")
@pytest.mark.needs("slurm")
def test_a_launch_on_drained_nodes_runs_once_they_take_jobs(script: Path, slurm_cluster: SlurmCluster) -> None:
    for node in ("n1", "n2"):
        slurm_cluster.call("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    cluster = Slurm(gpus_per_node=0, constraint="new", cpus_per_task=4)
    with pytest.warns(UserWarning, match="Slurm cannot start the job now: .*node configuration"):
        run = launch(script, cluster=cluster)
    number = (read_json(run.files.slurm) or {})["job_id"]
    ends = time.monotonic() + 300
    while not re.search("are down, drained or|is not available: n", told := waiting_for(run.records)):
        assert run.state == "QUEUED" and time.monotonic() < ends, told
        time.sleep(0.1)
        slurm.forget()
    slurm_cluster.call("scontrol", "update", "nodename=n2", "state=resume")
    slurm_cluster.wait_until(number, "COMPLETED")
    assert run.state == "SUCCEEDED" and "ran in" in run.log()


@pytest.mark.needs("slurm")
def test_a_run_waits_for_the_job_of_another(script: Path, project: Project, slurm_cluster: SlurmCluster) -> None:
    on_cpu = Slurm(gpus_per_node=0, preamble="sleep 600")
    first = launch(script, cluster=on_cpu)
    second = launch(script, cluster=on_cpu, after=first)
    job_id = (read_json(second.files.slurm) or {})["job_id"]
    assert slurm_cluster.call("squeue", "-h", "-j", str(job_id), "-o", "%E").startswith("afterany:")
    third = launch(script, cluster=on_cpu, after=second)
    number = (read_json(third.files.slurm) or {})["job_id"]
    assert second.stop().startswith("cancelled")  # the third job does not start beside the first one then
    waits_for = slurm_cluster.call("squeue", "-h", "-j", str(number), "-o", "%E")
    assert f"afterany:{(read_json(first.files.slurm) or {})['job_id']}" in waits_for
    assert third.state == "QUEUED"
    with pytest.raises(LaunchError, match=r"queue=False: has no effect on Slurm's queue"):
        launch(script, cluster=on_cpu, queue=False)
    with pytest.raises(LaunchError, match=f"after={first.id}: is a Slurm job, .*nbtools wait {first.id}"):
        launch(script, after=first)
    assert {path.name for path in project.runs.iterdir()} == {first.id, second.id, third.id}


@pytest.mark.needs("slurm")
def test_a_second_press_finds_the_job(texts: Project, tiny_config: Configs, slurm_cluster: SlurmCluster) -> None:
    slurm_cluster.call("scontrol", "update", "partitionname=high", "state=down")
    try:
        cluster = Slurm(gpus_per_node=0, partition="high")
        path = write_script(tiny_config(), "tiny", Launch(cluster=cluster), project=texts)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the job cannot start now
            (first, is_new), (second, is_another) = launch_once(path), launch_once(path)
        assert is_new and not is_another and first.id == second.id and first.state == "QUEUED"
    finally:
        slurm_cluster.call("scontrol", "update", "partitionname=high", "state=up")


def test_a_job_cannot_wait_for_a_run_on_this_machine(script: Path, supervised: Start, project: Project) -> None:
    first = supervised("sleep", "600")
    with pytest.raises(LaunchError, match=f"after={first.id}: is no Slurm job|sbatch and squeue are not on the path"):
        launch(script, cluster=Slurm(gpus_per_node=0), after=first)
    assert [path.name for path in project.runs.iterdir()] == [first.id]
    first.stop()


# --- a login node -----------------------------------------------------------------------------------

MOUNTS = """\
overlay / overlay rw 0 0
/dev/sda1 /scratch ext4 rw 0 0
nas:/home /home nfs4 rw 0 0
tmpfs /home/me/fast_disk tmpfs rw 0 0
mgs:/lustre /scratch lustre rw 0 0
gcs /bucket fuse.gcsfuse rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "disk"),
    [
        ("/var/runs", "overlay at /"),
        ("/home/me/runs", None),
        ("/home/me/fast_disk/runs", "tmpfs at /home/me/fast_disk"),
        ("/scratch/runs", None),
        ("/scratchy", "overlay at /"),
        ("/bucket", None),
    ],
)
def test_a_local_disk_is_known_by_its_file_system(folder: str, disk: str | None) -> None:
    mounts = [SimpleNamespace(mountpoint=line.split()[1], fstype=line.split()[2]) for line in MOUNTS.splitlines()]
    assert local_disk(Path(folder), mounts) == disk


@pytest.mark.needs("slurm")
def test_a_folder_that_the_nodes_do_not_see_is_refused(
    script: Path, project: Project, site: Path, slurm_cluster: SlurmCluster, monkeypatch: MonkeyPatch
) -> None:
    if local_disk(project.root) is None:
        pytest.fail("the temporary folder of the tests has to be on a local disk")
    on_cpu = Launch(cluster=Slurm(gpus_per_node=0, partition="high"))
    check_site(on_cpu, project.runs)  # all nodes are this machine
    monkeypatch.setattr("socket.gethostname", lambda: "login1.site.org")
    with pytest.raises(LaunchError, match=r"is on a local disk of login1.*shared_paths of .*slurm.toml"):
        check_site(on_cpu, project.runs)
    site.write_text(f"shared_paths = [{str(project.root)!r}]\n")
    check_site(on_cpu, project.runs)


def link_the_core(folder: Path) -> None:
    """Link the packages into a folder that an installation without extras has, and no others."""
    wanted, known = ["nbtools-ddp"], set()
    while wanted:
        found = distribution(wanted.pop())
        requirements = map(Requirement, found.requires or ())
        wanted += [each.name for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})]
        known |= {path.parts[0] for path in found.files or () if path.parts[0] != ".." and found.name != "nbtools-ddp"}
    for name in known:
        (folder / name).symlink_to(Path(sysconfig.get_path("purelib"), name))
    (folder / "nbtools").symlink_to(Path(nbtools.__file__).parent)


@pytest.mark.promise("slurm-login")
@pytest.mark.needs("slurm")
def test_a_login_node_without_torch_checks_launches_lists_and_stops(
    texts: Project, tiny_config: Configs, slurm_cluster: SlurmCluster, tmp_path: Path
) -> None:
    """The core alone is on its path; the job finds the other packages."""
    core = tmp_path / "core"
    core.mkdir()
    link_the_core(core)
    path = write_script(tiny_config(), "tiny", Launch(nproc_per_node=2), project=texts)

    def python(*words: str, code: int = 0) -> str:
        command = [sys.executable, "-S", "-P", *words]
        environment = {**os.environ, "PYTHONPATH": str(core)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, done
        return done.stdout or done.stderr

    for missing in ("torch", "transformers", "ipywidgets", "matplotlib", "datasets"):
        assert f"No module named '{missing}'" in python("-c", f"import {missing}", code=1)
    words = ["launch", str(path), "--cluster", "slurm", "--gpus-per-node", "0", "--preamble", "sleep 600 & wait"]
    assert "to start at" in python("-m", "nbtools", *words, "--dry-run")
    run = Run(python("-m", "nbtools", *words).strip())
    assert "torch" not in run.info["versions"] and run.info["recipe"] == "mlm_pretraining"
    number = (read_json(run.files.slurm) or {})["job_id"]
    assert slurm_cluster.call("squeue", "-h", "-j", str(number), "-o", "%j") == run.id
    (listed,) = json.loads(python("-m", "nbtools", "runs", "--json"))
    assert (listed["id"], listed["state"], listed["job"]["id"]) == (run.id, "QUEUED", number)
    slurm_cluster.wait_until(number, "RUNNING")
    assert re.search(rf"^job +{number} RUNNING n1", python("-m", "nbtools", "show", run.id), re.MULTILINE)
    assert "cancelled while queued" in python("-m", "nbtools", "stop", run.id)
    slurm_cluster.wait_until(number, "CANCELLED", "COMPLETED", "FAILED")
    assert json.loads(python("-m", "nbtools", "show", run.id, "--json"))["state"] == "STOPPED"
