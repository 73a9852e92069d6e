"""Slurm's client, on a real cluster of the test's own and on recorded answers."""

import os
import signal
import subprocess
import sys
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fixture_types import MonkeyPatch

from nbtools.errors import LaunchError
from nbtools.machine import slurm
from nbtools.machine.slurm import Job, reason_in_words, refusal
from nbtools.run.records import Records
from nbtools.run.slurm_job import end_in_words
from nbtools.rundir.json_files import write_json
from nbtools.rundir.rundir import RunDir

from slurm_cluster import SlurmCluster

SEEN = tomllib.loads(Path(__file__).with_name("slurm_seen.toml").read_text(encoding="utf-8"))


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A job that does nothing, whose name has the sign between squeue's fields."""
    path = tmp_path / "job.sbatch"
    path.write_text("#!/bin/bash\n#SBATCH --job-name='a|b c' --output=/dev/null\n#SBATCH --hold\n\nexit 3\n")
    return path


def num_calls(monkeypatch: MonkeyPatch) -> list[float]:
    """Note when squeue is asked."""
    times: list[float] = []
    real = subprocess.run

    def run(command: tuple[str, ...], **options: object) -> object:
        times.extend([time.monotonic()] * (command[0] == "squeue"))
        return real(command, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(slurm.subprocess, "run", run)
    return times


# --- a real cluster ---------------------------------------------------------------------------------


@pytest.mark.needs("slurm")
def test_a_job_is_listed_from_its_submission_to_its_end(slurm_cluster: SlurmCluster, script: Path) -> None:
    earlier = slurm.own_jobs()
    number, cluster = slurm.submit(script, os.environ)
    assert earlier is not None and number not in earlier and cluster is None
    pending = (slurm.own_jobs() or {})[number]
    assert (pending.state, pending.reason, pending.name) == ("PENDING", "JobHeldUser", "a|b c")
    assert reason_in_words(pending) == f"held by its user: `scontrol release {number}` lets it start"
    slurm_cluster.call("scontrol", "release", str(number))
    slurm_cluster.wait_until(number, "FAILED")
    assert (slurm.own_jobs() or {})[number] == pending, "an answer is kept for some seconds"
    slurm.forget()
    ended = (slurm.own_jobs() or {})[number]
    assert (ended.state, ended.nodes) == ("FAILED", "n1")
    assert slurm.cancel(number) is None, "it has ended already"
    assert slurm.cancel(10**6) is None, "and so may one that Slurm has forgotten"


@pytest.mark.needs("slurm")
def test_a_jobs_options_win_over_a_shell(slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    script, seen = tmp_path / "job.sbatch", tmp_path / "seen"
    script.write_text(
        f"#!/bin/bash\n#SBATCH --partition=low --output=/dev/null\nenv > {seen}.new && mv {seen}.new {seen}\n"
    )
    around = {"SBATCH_PARTITION": "high", "SBATCH_WAIT": "1", "SBATCH_CONSTRAINT": "new", "SBATCH_ARRAY_INX": "0-9"}
    leaking = {"SLURM_CPUS_PER_TASK": "77", "SLURM_MEM_PER_CPU": "5", "SLURM_JOB_ID": "1", "OF_THE_USER": "yes"}
    number, _ = slurm.submit(script, {**os.environ, **around, **leaking})
    slurm_cluster.wait_until(number, "COMPLETED")
    told = dict(line.partition("=")[::2] for line in seen.read_text().splitlines())
    assert (told["SLURM_JOB_PARTITION"], told["SLURM_JOB_NODELIST"], told["OF_THE_USER"]) == ("low", "n2", "yes")
    assert told["SLURM_JOB_ID"] == str(number) and told.keys().isdisjoint(leaking.keys() - {"SLURM_JOB_ID", *told})
    assert "SLURM_MEM_PER_CPU" not in told and told.get("SLURM_CPUS_PER_TASK") != "77"
    monkeypatch.setenv("SQUEUE_PARTITION", "high")
    slurm.forget()
    assert number in (slurm.own_jobs() or {}), "variables that filter squeue's answer do not count"


@pytest.mark.needs("slurm")
def test_elements_of_arrays_and_parts_of_heterogeneous_jobs_have_numbers(slurm_cluster: SlurmCluster) -> None:
    array = slurm_cluster.submit("sleep 600", "--array=0-3%1")
    waiting = slurm_cluster.submit("sleep 600", "--array=0-3", "--hold")
    command = ("sbatch", "--parsable", "--output=/dev/null", "--hold", "-n1", ":", "-n1", "--wrap", "true")
    parts = int(slurm_cluster.call(*command))
    slurm_cluster.wait_until(array, "PENDING\nRUNNING", "RUNNING\nPENDING")
    slurm.forget()
    jobs = slurm.own_jobs() or {}
    assert {array, waiting, parts, parts + 1} < set(jobs)
    assert jobs[array].reason == reason_in_words(jobs[array]) == "JobArrayTaskLimit", "as Slurm says it"
    assert [job.nodes for job in jobs.values() if job.state == "RUNNING"] == ["n1"]


@pytest.mark.needs("slurm")
def test_reasons_that_a_real_slurm_gives_are_told_in_words(slurm_cluster: SlurmCluster) -> None:
    slurm_cluster.call("scontrol", "update", "nodename=n2", "state=drain", "reason=test")
    held = slurm_cluster.submit("true", "--hold")
    options = {
        "waits for another job to end": [f"--dependency=afterok:{held}"],
        "time_limit exceeds the partition's": ["--time=3-0"],
        "its number of nodes is not within": ["--nodes=5"],
        "a node that it needs is not available: n2": ["--nodelist=n2"],
        "waits for its earliest start, as after a requeue; earliest start": ["--begin=now+2hours"],
        "waits until enough nodes are free": ["--exclusive", "--partition=high", "--nodelist=n1"],
    }
    full = slurm_cluster.submit("sleep 600", "--exclusive", "--nodelist=n1", "--partition=high", "--time=30")
    slurm_cluster.wait_until(full, "RUNNING")
    numbers = {words: slurm_cluster.submit("true", *given) for words, given in options.items()}
    ends = time.monotonic() + 300
    while True:  # the scheduler looks at a new job within seconds, and gives another reason until then
        slurm.forget()
        jobs = slurm.own_jobs() or {}
        told = {words: reason_in_words(jobs[number]) for words, number in numbers.items()}
        if all(said.startswith(words) for words, said in told.items()):
            break
        assert time.monotonic() < ends, told
        time.sleep(0.1)
    later = told["waits for its earliest start, as after a requeue; earliest start"]
    assert later.endswith(("(in 2h)", "(in 1h59m)"))
    assert reason_in_words(jobs[full]).startswith("runs on n1 until ")


@pytest.mark.slow
@pytest.mark.needs("slurm")
def test_the_last_answer_stays_while_the_controller_is_down(
    slurm_cluster: SlurmCluster, script: Path, monkeypatch: MonkeyPatch
) -> None:
    number, _ = slurm.submit(script, os.environ)
    before = slurm.own_jobs()
    assert before is not None and number in before and slurm.silence() is None
    slurm_cluster.kill("slurmctld", signal.SIGTERM)
    slurm.forget()
    monkeypatch.setattr(slurm, "_WAITS_S", 60)  # until squeue has given up
    with ThreadPoolExecutor() as at_once:  # each of them tries for ten seconds
        refused = at_once.submit(slurm.expected_start, script, os.environ)
        assert slurm.own_jobs() == before
    assert "squeue has not answered for " in str(slurm.silence()) and "Unable to contact slurm" in str(slurm.silence())
    assert isinstance(refused.exception(), LaunchError) and "Unable to contact slurm" in str(refused.exception())
    slurm_cluster.start("slurmctld")
    slurm_cluster.wait_until(number, "PENDING")
    slurm.forget()
    assert (slurm.own_jobs() or {})[number].state == "PENDING" and slurm.silence() is None
    os.kill(slurm_cluster.pid("slurmctld"), signal.SIGSTOP)
    monkeypatch.setattr(slurm, "_WAITS_S", 0)
    slurm.forget()
    assert number in (slurm.own_jobs() or {}), "no caller waits for a call that hangs"
    call = slurm._queues[None].call
    assert call is not None and call.is_alive()
    os.kill(slurm_cluster.pid("slurmctld"), signal.SIGCONT)
    call.join()
    assert slurm.silence() is None


@pytest.mark.needs("slurm")
def test_a_wrong_slurm_conf_is_told(slurm_cluster: SlurmCluster, monkeypatch: MonkeyPatch, script: Path) -> None:
    monkeypatch.setenv("SLURM_CONF", str(script.parent / "missing.conf"))
    monkeypatch.setattr(slurm, "_queues", {})
    assert slurm.own_jobs() is None and "missing.conf" in str(slurm.silence())
    with pytest.raises(LaunchError, match=r"missing\.conf"):
        slurm.submit(script, os.environ)


@pytest.mark.needs("slurm", "network namespaces")
def test_nodes_that_are_hosts_have_their_own_names_and_addresses(slurm_hosts: SlurmCluster, tmp_path: Path) -> None:
    said = (
        f"import os, socket, sys; sys.path.insert(0, {str(Path(slurm.__file__).parents[2])!r}); "
        "from nbtools.machine import network as n; name = socket.gethostname(); "
        "print(name, socket.gethostbyname(name), n.meeting_point()[0], n.interface_towards(sys.argv[1]))"
    )
    # Without --quiet srun says on a loaded machine that it waits for its nodes.
    lines = slurm_hosts.call("srun", "--quiet", "-N2", sys.executable, "-P", "-c", said, "n1").splitlines()
    (first, *ways), (second, *others) = (line.split() for line in sorted(lines))
    assert (first, second) == ("n1", "n2") and ways[0] == ways[1] and others[0] == others[1] != ways[0]
    assert others[2] == "eth0" and ways[2] == "eth0"
    assert not slurm.is_one_machine()
    inside = tmp_path / "inside"
    job = slurm_hosts.submit(f"srun --ntasks-per-node=1 hostname > {inside}", "--nodes=2")
    slurm_hosts.wait_until(job, "COMPLETED", "FAILED")
    assert sorted(inside.read_text().split()) == ["n1", "n2"], "a step on both, from the first"


# --- without one ------------------------------------------------------------------------------------


@pytest.fixture
def fake_squeue(tmp_path: Path, monkeypatch: MonkeyPatch) -> Path:
    """A program named squeue that prints the file `answer` beside it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "squeue").write_text(f'#!/bin/sh\nexec cat "{folder}/answer"\n')
    (folder / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm, "_queues", {})
    return folder / "answer"


LINE = "{number}|RUNNING|None|1795388780|1795561580|n[1-2]|2|2026-01-31_142233_mlm"


def test_callers_share_one_call_and_ask_less_often_while_it_fails(fake_squeue: Path, monkeypatch: MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(slurm, "_WAITS_S", 1e6)
    monkeypatch.setattr(slurm, "_WAITS_FIRST_S", 1e6)
    monkeypatch.setattr(slurm.time, "monotonic", lambda: clock[0])
    asked = num_calls(monkeypatch)
    fake_squeue.write_text(LINE.format(number=12))
    threads = [threading.Thread(target=slurm.own_jobs) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(slurm.own_jobs() or {}) == [12] and asked == [1000.0]
    fake_squeue.unlink()
    for second in range(1, 600):
        clock[0] = 1000.0 + second
        assert list(slurm.own_jobs() or {}) == [12], "the last answer"
    assert asked == [1000, 1010, 1030, 1070, 1150, 1310], "10 s after an answer, then 20, 40, 80, 160"
    fake_squeue.write_text("")
    clock[0] = 1610.0
    assert slurm.own_jobs() == {} and slurm.silence() is None


def test_an_answer_from_before_a_submission_does_not_count(fake_squeue: Path, monkeypatch: MonkeyPatch) -> None:
    began, may_end = fake_squeue.parent / "began", fake_squeue.parent / "end"
    for path in (began, may_end):
        os.mkfifo(path)
    (fake_squeue.parent / "squeue").write_text(f'#!/bin/sh\n: < "{began}"; cat "{fake_squeue}"; : < "{may_end}"\n')
    fake_squeue.write_text(LINE.format(number=1))
    monkeypatch.setattr(slurm, "_WAITS_FIRST_S", 0)
    assert slurm.own_jobs() is None
    old = slurm._queues[None].call
    began.write_text("")
    slurm.forget()
    (fake_squeue.parent / "new").write_text(f'#!/bin/sh\nexec cat "{fake_squeue}.new"\n')
    (fake_squeue.parent / "new").chmod(0o755)
    (fake_squeue.parent / "new").replace(fake_squeue.parent / "squeue")
    Path(f"{fake_squeue}.new").write_text(LINE.format(number=2))
    monkeypatch.setattr(slurm, "_WAITS_FIRST_S", 30)
    assert list(slurm.own_jobs() or {}) == [2]
    may_end.write_text("")
    old.join()
    assert list(slurm.own_jobs() or {}) == [2]


@pytest.mark.parametrize(
    ("printed", "words"),
    [
        ("", "does not say why"),
        ("  ok       torch  2.13.0\n  warn     disk  few\n{:22}-> free some\n", "does not say why"),
        ("  ok       torch  2.13.0\nbash: line 3: module: not found\n", "ends with: bash: line 3"),
    ],
)
def test_a_preflights_line_ends_no_job(fake_squeue: Path, tmp_path: Path, printed: str, words: str) -> None:
    run = RunDir(tmp_path / "2026-01-31_142233_mlm")
    run.ranks.mkdir(parents=True)
    write_json(run.slurm, {"job_id": 12})
    run.job_log.write_text("say: attempt 1 in job 12 on n1\n" + printed.format(""))
    fake_squeue.write_text(LINE.format(number=12).replace("RUNNING", "FAILED"))
    assert f"{run.job_log} {words}" in end_in_words(Records(run))


RECORDED = """\
case "${0##*/} $*" in
"sbatch --parsable "*) echo "4;b" ;;
*--clusters=zz*) echo "squeue: error: No cluster 'zz' known by database." >&2; exit 1 ;;
"squeue --clusters=b -h "*) echo "4|RUNNING|None|1795418860|1795505260|b1|1|2026-11-23_072740_say" ;;
"squeue -h "*) echo "1|PENDING|JobHeldUser|N/A|N/A||1|wrap" ;;
"scancel --clusters=b 4") ;;
*) echo "not recorded: $0 $*" >&2; exit 2 ;;
esac
"""
"""Answers of two real clusters, `a`, which the machine belongs to, and `b`, joined by slurmdbd 22.05.8."""


def test_a_job_on_another_cluster_is_cancelled_there(fake_squeue: Path, script: Path, monkeypatch: MonkeyPatch) -> None:
    for name in ("squeue", "sbatch", "scancel"):
        (fake_squeue.parent / name).write_text(f"#!/bin/bash\n{RECORDED}")
        (fake_squeue.parent / name).chmod(0o755)
    monkeypatch.setenv("SLURM_CLUSTERS", "b")
    number, cluster = slurm.submit(script, os.environ)
    assert (number, cluster) == (4, "b")
    assert [job.nodes for job in (slurm.own_jobs(cluster) or {}).values()] == ["b1"]
    assert list(slurm.own_jobs() or {}) == [1]
    assert slurm.cancel(number, cluster) is None and "not recorded" in str(slurm.cancel(number))
    assert slurm.own_jobs("zz") is None and "No cluster 'zz' known" in str(slurm.silence("zz"))


def test_lines_of_another_form_are_left() -> None:
    good = LINE.format(number=7)
    forged = ["", "CLUSTER: two", "7|RUNNING", "-1|RUNNING|None|1|2|n1|1|x", "٣|RUNNING|None|1|2|n1|1|x"]
    jobs = slurm.parse_jobs("\n".join([*forged, "8|PENDING|a{b}|N/A|NONE||2K|x", good, "9|PENDING||N/A|N/A||1|"]))
    assert list(jobs) == [7, 9] and jobs[9].name == "" and jobs[9].starts_at is None
    assert reason_in_words(jobs[9]) == "waits"
    job = slurm.parse_jobs("7|PENDING|Priority|2026-11-22T22:33:27|N/A||1|x")[7]  # without SLURM_TIME_FORMAT
    assert job.starts_at is None and reason_in_words(job) == "waits for jobs of higher priority"


def test_an_endless_answer_is_cut(fake_squeue: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "_LONGEST_ANSWER", int(len(LINE) * 1.5))
    fake_squeue.write_text("\n".join(LINE.format(number=number) for number in range(1, 1000)))
    assert list(slurm.own_jobs() or {}) == [1]


@pytest.mark.parametrize(("reason", "said"), SEEN["reasons"].items())
def test_reasons_in_words(reason: str, said: str) -> None:
    assert reason_in_words(Job(7, "PENDING", reason, None, None, "", 1, "x")) == said
    ending = "is ending: Slurm waits for its last processes"
    for state, words in (("COMPLETING", ending), ("SOMETHING_NEW", "SOMETHING_NEW")):
        assert reason_in_words(Job(7, state, reason, 1.0, 2.0, "n1", 1, "x")) == words


@pytest.mark.parametrize(
    ("in_s", "said"),
    [
        (7800, "; expected start 02:10 (in 2h10m)"),
        (30, "; expected start 00:00 (in 30s)"),
        (90_000, "; expected start Fri 01:00 (in 1d1h)"),
        (864_000, "; expected start 11 Jan 00:00 (in 10d)"),
        (-5, ""),
        (365 * 86400, ""),
    ],
)
def test_the_expected_start_is_told_in_local_hours(monkeypatch: MonkeyPatch, in_s: float, said: str) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    now = 1_767_225_600.0  # Thursday, 1 January 2026
    job = Job(7, "PENDING", "Resources", now + in_s, None, "", 1, "x")
    assert reason_in_words(job, now) == f"waits until enough nodes are free{said}"
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(("text", "name"), [(said, name) for name, texts in SEEN["refusals"].items() for said in texts])
def test_refusals_name_the_field(text: str, name: str) -> None:
    assert refusal(text) == (name or None, text)


def test_without_an_answer_of_sinfo_it_is_unknown_what_the_nodes_see(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert slurm.is_one_machine() is None
