"""A real Slurm for tests: one controller and two nodes on this machine, from Debian's packages, without systemd.

`python tests/slurm_cluster.py` starts one for a person and prints its SLURM_CONF; it ends with the end of the input.
Several can run at once: folder, ports and key are each cluster's own. No daemon, and no process of a job, outlives the
program that starts the cluster: this file, run as a program, is the parent of them all, adopts what loses its parent,
and kills it when its input ends, which happens whatever ends the other side.
"""

import contextlib
import ctypes
import json
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue")
NODES = ("n1", "n2")
NUM_CPUS = 4
DAEMONS = ("munged", "slurmctld", *NODES)
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"  # a shell of a user who became root may lack them
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_READY_WITHIN_S = 60
_CONFIGURATION = """\
ClusterName=nbtools
SlurmctldHost={host}({controller})
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
KillWait=30
MinJobAge=3600
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
NodeName=DEFAULT CPUs={cpus} RealMemory=4000
NodeName=n1 NodeHostname={hosts[0]} NodeAddr={nodes[0]} Port={ports[1]} Features=old
NodeName=n2 NodeHostname={hosts[1]} NodeAddr={nodes[1]} Port={ports[2]} Features=new Gres=gpu:toy:2
PartitionName=low Nodes=n1,n2 Default=YES MaxTime=2-00:00:00 State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=0
PartitionName=high Nodes=n1,n2 MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
"""`cred_expire=5`: a job that is queued again waits 5 s instead of 120. Each node has more cores than the machine may;
n2 has two GPUs, which are copies of /dev/null."""


def is_installed() -> bool:
    """Whether this process may start the daemons, and they are there."""
    return os.geteuid() == 0 and all(shutil.which(name, path=_PATH) for name in PROGRAMS)


class SlurmCluster:
    """A running cluster as its users see it: partitions `low`, which is the default, and `high`, which preempts it."""

    def __init__(self, keeper: "subprocess.Popen[str]", folder: Path, pids: dict[str, int]) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self._keeper = keeper
        self._pids = pids

    def call(self, *command: str, code: int | None = 0) -> str:
        """Run one of Slurm's commands and return what it prints, with times as Unix times."""
        environment = {**os.environ, "SLURM_CONF": str(self.conf), "SLURM_TIME_FORMAT": "%s"}
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False
        )
        assert code is None or done.returncode == code, (command, done, self.logs())
        return (done.stdout + done.stderr).strip()

    def submit(self, command: str, *options: str) -> int:
        """Submit a line of shell as a job whose output is dropped, and return its id."""
        answer = self.call("sbatch", "--parsable", "--output=/dev/null", *options, "--wrap", command)
        return int(answer.partition(";")[0])

    def state(self, job_id: int) -> str:
        """Return Slurm's word for the state of a job, such as PENDING."""
        return self.call("squeue", "-h", "-t", "all", "-j", str(job_id), "-o", "%T")

    def wait_until(self, job_id: int, *states: str, within_s: float = 300) -> str:
        """Wait until a job is in one of the states, and return it."""
        ends = time.monotonic() + within_s
        while (state := self.state(job_id)) not in states:
            assert time.monotonic() < ends, f"job {job_id} is {state}, not {states}: {self.logs()}"
            time.sleep(0.05)
        return state

    def pid(self, daemon: str) -> int:
        """Return the process id of one of DAEMONS."""
        return self._pids[daemon]

    def kill(self, daemon: str, number: int = signal.SIGKILL) -> None:
        """Signal a daemon and wait until it is gone; jobs continue.

        After SIGKILL the controller no longer knows jobs of the last seconds; with SIGTERM it stores them first.
        """
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self._pids[daemon])
            process.send_signal(number)
            process.wait(timeout=300)

    def start(self, daemon: str) -> None:
        """Start a daemon again, with what it stored on disk."""
        assert self._keeper.stdin is not None and self._keeper.stdout is not None
        print(daemon, file=self._keeper.stdin, flush=True)
        self._pids[daemon] = int(self._keeper.stdout.readline())

    def reset(self) -> None:
        """End all jobs and have all daemons run and all nodes ready for jobs, for the next test."""
        for daemon, pid in self._pids.items():
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGCONT)
            else:
                self.start(daemon)
        for node in NODES:
            self.call("scontrol", "update", f"nodename={node}", "state=resume", code=None)
        ends = time.monotonic() + _READY_WITHIN_S
        while not _is_ready(self.conf):
            assert time.monotonic() < ends, self.logs()
            self.call("scancel", "--user=root", "--full", "--signal=KILL", code=None)
            self.call("scancel", "--user=root", code=None)

    def logs(self) -> str:
        """Return the last lines of the daemons' logs."""
        return _logs(self.folder)


@contextmanager
def running_cluster(*, hosts: bool = False) -> Iterator[SlurmCluster]:
    """Start a cluster, and end it with all its processes afterwards; with `hosts`, its nodes have names and addresses.

    Each node then is in namespaces of its own (network, host name, mounts), joined with this machine by a switch:
    hosts `n1` and `n2`, with eth0 that leads to the other, and docker0, whose address is the same on both.
    """
    keeper = subprocess.Popen(
        [sys.executable, "-P", __file__, "--json", *(["--hosts"] if hosts else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C in a terminal ends the tests, which end the cluster
    )
    assert keeper.stdin is not None and keeper.stdout is not None
    try:
        started = json.loads(keeper.stdout.readline() or "{}")
        if "folder" not in started:
            raise RuntimeError(f"no Slurm: {started.get('error')}")
        yield SlurmCluster(keeper, Path(started["folder"]), started["pids"])
    finally:
        keeper.terminate()  # a process forked from the tests may hold its input open
        keeper.wait()
        keeper.stdin.close()
        keeper.stdout.close()


# --- the program that keeps the daemons -------------------------------------------------------------


def _command(daemon: str, folder: Path) -> list[str]:
    """Return the command of a daemon that stays in the foreground."""
    if daemon == "munged":
        files = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munged.pid", "log-file": "munged.log"}
        options = [f"--{option}={folder / name}" for option, name in {**files, "seed-file": "seed"}.items()]
        return [daemon, "--foreground", "--force", *options]
    if daemon == "slurmctld":
        return [daemon, "-D"]
    holder = folder / f"{daemon}.pid"  # of the process that holds a node's namespaces
    enter = ["nsenter", f"--target={holder.read_text()}", "--net", "--uts", "--mount"] if holder.exists() else []
    return [*enter, "slurmd", "-D", "-N", daemon]


def _start(daemon: str, folder: Path) -> int:
    return _run(daemon, _command(daemon, folder), folder)


def _run(name: str, command: Sequence[str], folder: Path) -> int:
    def die_with_the_keeper() -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    with (folder / f"{name}-stderr.log").open("ab") as output:
        return subprocess.Popen(
            command,
            env={**os.environ, "PATH": _PATH, "SLURM_CONF": str(folder / "slurm.conf")},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=die_with_the_keeper,
        ).pid


# --- nodes as hosts -----------------------------------------------------------------------------------

_HOST = """\
hostname {name}
mount --bind {folder}/hosts /etc/hosts
ip link set lo up
ip link add docker0 type bridge
ip addr add 172.17.0.1/16 dev docker0
ip link set docker0 up
until ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done
ip addr add {address}/24 dev eth0
ip link set eth0 up
ip route add default via {gateway}
touch {folder}/{name}.up
exec sleep infinity
"""


def _make_hosts(folder: Path, switch: str, network: str) -> None:
    """Make a switch with an address of this machine, and a host for each node on it."""
    gateway, host = f"{network}.254", socket.gethostname().partition(".")[0]
    lines = [f"{gateway} {host}", *(f"{network}.{number} {name}" for number, name in enumerate(NODES, 1))]
    (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
    _ip("link", "add", switch, "type", "bridge")
    _ip("addr", "add", f"{gateway}/24", "dev", switch)
    _ip("link", "set", switch, "up")
    for number, name in enumerate(NODES, 1):
        script = _HOST.format(name=name, folder=folder, address=f"{network}.{number}", gateway=gateway)
        pid = _run(f"{name}-host", ["unshare", "--net", "--uts", "--mount", "sh", "-ec", script], folder)
        while Path(f"/proc/{pid}/ns/net").readlink() == Path("/proc/self/ns/net").readlink():
            time.sleep(0.01)
        port = f"{switch}{number}"
        _ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        _ip("link", "set", port, "master", switch, "up")
        (folder / f"{name}.pid").write_text(str(pid))
        while not (folder / f"{name}.up").exists():
            Path(f"/proc/{pid}/exe").readlink()  # fails if it has ended
            time.sleep(0.01)


def _ip(*words: str) -> None:
    done = subprocess.run(
        ["ip", *words], env={**os.environ, "PATH": _PATH}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr}")


def _free_ports(number: int) -> list[int]:
    """Return free ports below those that the system gives out by itself, so that no other program gets one first."""
    found: list[int] = []
    while len(found) < number:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", random.SystemRandom().randrange(10_000, 30_000)))
            found.append(probe.getsockname()[1])
    return found


def _configure(folder: Path, network: str) -> None:
    folder.chmod(0o755)  # munged wants its socket within reach of every user
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    host = socket.gethostname().partition(".")[0]
    addresses = [f"{network}.{number}" for number in (254, 1, 2)] if network else ["127.0.0.1"] * 3
    text = _CONFIGURATION.format(
        host=host,
        controller=addresses[0],
        hosts=NODES if network else [host] * len(NODES),
        nodes=addresses[1:],
        folder=folder,
        ports=_free_ports(1 + len(NODES)),
        cpus=NUM_CPUS,
    )
    (folder / "slurm.conf").write_text(text)
    (folder / "gres.conf").write_text(f"NodeName=n2 Name=gpu Type=toy Flags=nvidia_gpu_env File={folder}/gpu[0-1]\n")
    for number in range(2):
        os.mknod(folder / f"gpu{number}", stat.S_IFCHR | 0o600, os.makedev(1, 3))  # as /dev/null


def _is_ready(conf: Path) -> bool:
    """Whether the controller answers, every node can take a job, and none has one."""
    environment = {**os.environ, "SLURM_CONF": str(conf)}
    command = ["sinfo", "-h", "-N", "-p", "low", "-o", "%T"]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if answer.returncode != 0 or answer.stdout.split() != ["idle"] * len(NODES):
        return False
    command = ["squeue", "-h", "-o", "%i"]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    return answer.returncode == 0 and not answer.stdout


def _logs(folder: Path) -> str:
    return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-2000:]}" for path in folder.glob("*.log"))


def _up(folder: Path, switch: str) -> dict[str, int]:
    """Start all daemons and wait until the nodes are ready.

    Raises:
        RuntimeError: they are not ready in time; with the ends of the logs.
    """
    draw = random.SystemRandom().randrange
    network = f"10.{draw(128, 256)}.{draw(256)}" if switch else ""
    _configure(folder, network)
    if switch:
        _make_hosts(folder, switch, network)
    ends = time.monotonic() + _READY_WITHIN_S
    pids = {"munged": _start("munged", folder)}
    while not (folder / "munge.sock").exists() and time.monotonic() < ends:
        time.sleep(0.02)
    pids |= {daemon: _start(daemon, folder) for daemon in DAEMONS[1:]}
    while not _is_ready(folder / "slurm.conf"):
        if time.monotonic() > ends:
            raise RuntimeError(_logs(folder))
        time.sleep(0.05)
    return pids


def _end_all() -> None:
    """Kill every process that descends from this one, those that it adopted included."""
    while children := psutil.Process().children(recursive=True):
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        time.sleep(0.02)


def _reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main(words: Sequence[str]) -> int:
    """Keep a cluster until the input ends; each line of input names a daemon to start again."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = Path(tempfile.mkdtemp(prefix="nbtools-slurm-"))
    switch = f"nbt{os.getpid() % 10**8}" if "--hosts" in words else ""  # an interface's name has at most 15 characters
    try:
        pids = _up(folder, switch)
        signal.signal(signal.SIGCHLD, _reap)  # from now on no call waits for a child of its own
        conf = folder / "slurm.conf"
        print(
            json.dumps({"folder": str(folder), "pids": pids}) if "--json" in words else f"export SLURM_CONF={conf}",
            flush=True,
        )
        for line in sys.stdin:
            print(_start(line.strip(), folder), flush=True)
    except (RuntimeError, OSError) as error:
        print(json.dumps({"error": str(error)}), flush=True)
    except KeyboardInterrupt:
        return 130
    finally:
        signal.signal(signal.SIGCHLD, _reap)
        _end_all()
        if switch:
            with contextlib.suppress(RuntimeError):
                _ip("link", "delete", switch)
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
