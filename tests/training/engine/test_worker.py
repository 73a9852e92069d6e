"""What loops call: learning rate, accumulation without traffic, signals as flags, heartbeats, the end of the agent."""

import ast
import ctypes
import ipaddress
import itertools
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fixture_types import Train
from safetensors.torch import load_file
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from transformers import ModernBertConfig, ModernBertModel, masking_utils
from waiting import eventually

from nbtools.config import TrainConfig
from nbtools.errors import LaunchError
from nbtools.launcher.checks.step_count import learning_rate
from nbtools.machine import devices
from nbtools.machine.devices import Device
from nbtools.project import Project
from nbtools.recipes import MLMPretrainingConfig
from nbtools.run.checkpoints import Checkpoint
from nbtools.rundir.json_files import read_json
from nbtools.rundir.rundir import RunDir
from nbtools.training.engine import optimizer as optimizer_module
from nbtools.training.engine.checkpoint import load_state
from nbtools.training.engine.optimizer import Optimizer, accumulating, autocast, compile_forward
from nbtools.training.process import heartbeat_writer
from nbtools.training.process.device import choose_device, stay_on_this_machine
from nbtools.training.process.heartbeat_writer import HeartbeatWriter
from nbtools.training.process.signals import StopRequest, die_with_agent
from nbtools.training.process.vote import Vote

from forked_rank import start_ranks
from trainings import TINY, ByHand, assert_same_checkpoints, rows

CPU = torch.device("cpu")

# --- pieces of a step -----------------------------------------------------------------------------


@pytest.mark.parametrize("floor", [0.0, 0.125])
@pytest.mark.parametrize("warmup", [0, 10, 80, 100])
@pytest.mark.parametrize("schedule", ["linear", "cosine", "wsd", "constant"])
def test_the_learning_rates_are_those_of_the_formula_written_anew(schedule: str, warmup: int, floor: float) -> None:
    """Straight lines through the corners of the schedule, or half a wave; the step after the last one has the floor."""
    start = max(warmup, 70) if schedule == "wsd" else warmup
    expected = []
    for step in range(1, 101):
        left = min((101 - step) / (101 - start), 1.0)
        left = math.sin(math.pi / 2 * left) ** 2 if schedule == "cosine" else 1.0 if schedule == "constant" else left
        expected.append(0.5 * step / warmup if step <= warmup else floor + (0.5 - floor) * left)
    asked = {"learning_rate": 0.5, "min_learning_rate": floor, "lr_schedule": schedule, "decay_ratio": 0.3}
    for given in ({"warmup_ratio": warmup / 100}, {"warmup_ratio": 0.5, "warmup_steps": warmup}):
        config = TrainConfig(**asked, **given)
        rates = [learning_rate(config, step, 100) for step in range(1, 101)]
        assert rates == pytest.approx(expected, abs=1e-12)
        assert min(rates) > 0


def test_averages_follow_the_weights_and_take_their_place_only_where_asked() -> None:
    torch.manual_seed(0)
    model, config = torch.nn.Linear(5, 3), TrainConfig(ema_decay=0.75, warmup_steps=0)
    optimizer = Optimizer(model, config, 20, CPU)
    optimizer.load_state_dict({})
    expected = [weight.detach().double().clone() for weight in model.parameters()]
    for step in range(1, 21):
        optimizer.backward(model(torch.randn(4, 5)).square().sum())
        optimizer.step(step)
        expected = [
            0.75 * old + 0.25 * new.detach().double() for old, new in zip(expected, model.parameters(), strict=True)
        ]
    trained = [weight.detach().clone() for weight in model.parameters()]
    averages = optimizer.averages
    assert averages is not None
    averages.exchange()
    for weight, average, before in zip(model.parameters(), expected, trained, strict=True):
        assert torch.allclose(weight.double(), average, atol=1e-6) and not torch.equal(weight, before)
    averages.exchange()
    assert all(map(torch.equal, model.parameters(), trained))
    optimizer.replan(config.replace(ema_decay=0.0), 20)
    assert optimizer.averages is None, "a request may end it"
    assert Optimizer(model, config, 20, CPU, may_average=False).averages is None


def test_evaluations_and_saved_models_have_the_averages_and_the_training_is_as_without(
    trained: Train, texts: Project
) -> None:
    values = {**TINY["mlm_pretraining"], "max_steps": 6, "test_fraction": 0.5}
    plain, averaged = (trained(MLMPretrainingConfig(**values, ema_decay=decay)) for decay in (0.0, 0.5))
    for name, is_same in (("train/loss", True), ("eval/loss", False), ("test/loss", False)):
        first, second = ([row[name] for row in rows(files) if name in row] for files in (plain, averaged))
        assert first and (first == second) == is_same, name
    models = [load_file(files.checkpoint(6) / "model/model.safetensors") for files in (plain, averaged)]
    assert not any(torch.equal(weight, models[1][name]) for name, weight in models[0].items())
    assert [Checkpoint.read(each.checkpoint(6)).manifest.get("averaged") for each in (plain, averaged)] == [None, True]
    stored = load_state(averaged.checkpoint(6))["trained"].values()
    assert {weight.numpy().tobytes() for weight in stored} == {
        weight.numpy().tobytes() for weight in models[0].values()
    }


def test_only_matrices_decay() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.LayerNorm(3))
    decaying, others = Optimizer(model, TrainConfig(weight_decay=0.3), 10, CPU).adamw.param_groups
    assert [weight.shape for weight in decaying["params"]] == [(3, 2)]
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.3, 0.0)
    assert len(others["params"]) == 3


@pytest.mark.parametrize(("clip", "expected"), [(1.0, 1.0), (0.0, 5.0)])
def test_a_step_clips_reports_the_norm_before_and_clears(clip: float, expected: float) -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    optimizer = Optimizer(
        model, TrainConfig(gradient_clip=clip, learning_rate=0.5, warmup_ratio=0, lr_schedule="constant"), 10, CPU
    )
    optimizer.backward((model.weight * torch.tensor([[3.0, 4.0]])).sum())
    optimizer.step(1)
    assert optimizer.metrics() == {"train/learning_rate": 0.5, "train/grad_norm": pytest.approx(5)}
    (moments,) = optimizer.state_dict()["optimizer"].values()
    assert float(moments["exp_avg"].norm()) == pytest.approx(0.1 * expected, rel=1e-4)  # of the clipped gradient
    assert model.weight.grad is None


@pytest.mark.promise("guide-L1")
def test_fp16_scales_the_loss_and_leaves_out_a_step_that_overflowed() -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    config = TrainConfig(precision="fp16", warmup_ratio=0, lr_schedule="constant")
    optimizer = Optimizer(model, config, 10, CPU)
    before = model.weight.detach().clone()

    def step(number: int, factor: float) -> dict[str, float]:
        optimizer.backward((model.weight * factor).sum())
        optimizer.step(number)
        return optimizer.metrics()

    row = step(1, math.inf)
    assert row == {"train/learning_rate": config.learning_rate, "train/loss_scale": 2.0**15}  # half of what it was
    assert torch.equal(model.weight, before)
    assert [int(moments["step"]) for moments in optimizer.state_dict()["optimizer"].values()] == [0]
    row = step(2, 1.0)
    assert row["train/grad_norm"] == pytest.approx(math.sqrt(2)), "as if nothing had been scaled"
    assert not torch.equal(model.weight, before)

    again = Optimizer(model, config, 10, CPU)
    again.load_state_dict(optimizer.state_dict())
    assert again.metrics()["train/loss_scale"] == 2.0**15


def test_a_low_precision_is_that_of_the_computation_and_weights_stay_fp32() -> None:
    model = torch.nn.Linear(2, 2)
    for precision, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)):
        with autocast(torch.device("cpu"), precision):
            assert model(torch.ones(2)).dtype == dtype
    assert model.weight.dtype == torch.float32


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_only_the_last_accumulated_pass_sends_gradients() -> None:
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    sent: list[int] = []

    def count(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        sent.append(bucket.index())
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model.register_comm_hook(None, count)
    for micro_step in range(1, 5):
        with accumulating(model, is_last=micro_step == 4):
            model(torch.ones(3, 2)).sum().backward()
        assert len(sent) == (1 if micro_step == 4 else 0)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(("step_s", "within_s"), [(0.01, 1.01), (0.05, 1.05), (5.0, 10.0)])
def test_a_request_waits_a_second_and_a_step_at_most_or_two_slow_steps(
    step_s: float, within_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that each step moves on, so that the machine's speed does not matter."""
    now_s, asked_s, waits_s = [100.0], list[float](), list[float]()
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    vote = Vote(StopRequest(), dist.group.WORLD)
    vote.num_waiting = lambda: len(asked_s)
    for number in range(500):
        now_s[0] += step_s
        vote.agreed()
        if vote.has_requests and asked_s:
            waits_s += [now_s[0] - asked_s.pop()]
        elif number > 60 and not asked_s:  # at any moment of the next step
            asked_s.append(now_s[0] + step_s * (number % 7) / 7)
    assert len(waits_s) > 7
    assert max(waits_s) <= within_s


class Layers(torch.nn.Module):
    """Two layers that are used, the first with activations that are computed again, and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unused = (torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, inputs_B4: torch.Tensor) -> torch.Tensor:
        first_B4 = checkpoint(lambda: self.first(inputs_B4).tanh(), use_reentrant=False)
        hidden_B4: torch.Tensor = self.second(first_B4)
        return hidden_B4.square().sum()


def stepped(model: torch.nn.Module, wrapped: torch.nn.Module) -> Iterator[list[torch.Tensor | None]]:
    """Take three steps of two passes; yield the gradients after every pass, and after every step."""
    config = TrainConfig(learning_rate=0.1, weight_decay=0.1, warmup_ratio=0, lr_schedule="constant")
    optimizer = Optimizer(wrapped, config, 3, CPU)
    for step in range(1, 4):
        for micro_step in (1, 2):
            with accumulating(wrapped, is_last=micro_step == 2):
                optimizer.backward(wrapped(torch.full((2, 4), float(step + micro_step))))
            yield [weight.grad for weight in model.parameters()]
        optimizer.step(step)
        yield [weight.grad for weight in model.parameters()]


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(("finds_unused", "is_compiled"), [(False, False), (True, False), (False, True)])
def test_ddp_s_gradients_stay_in_its_buckets_and_the_steps_are_those_without_it(
    monkeypatch: pytest.MonkeyPatch, finds_unused: bool, is_compiled: bool
) -> None:
    monkeypatch.setattr(optimizer_module, "COMPILER", "aot_eager")  # all but the C++ compiler
    torch.manual_seed(0)
    plain, model = Layers(), Layers()
    model.load_state_dict(plain.state_dict())
    if not finds_unused:
        for each in (plain, model):
            each.unused.requires_grad_(False)
    for _ in stepped(plain, plain):
        pass
    if is_compiled:
        compile_forward(model)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True, find_unused_parameters=finds_unused)
    seen = [[None if grad is None else grad.data_ptr() for grad in grads[:4]] for grads in stepped(model, ddp)]
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(weight, plain.state_dict()[name], rtol=1e-5 * is_compiled, atol=1e-6 * is_compiled)
    assert all(weight.grad is None for weight in model.unused.parameters()), "no step of weight decay for these"
    if not finds_unused:  # DDP makes its buckets again once, after the first step
        assert seen[1] == seen[2]
        assert all(places == seen[3] for places in seen[3:])
        storages = {
            weight.grad.untyped_storage().data_ptr() for weight in model.parameters() if weight.grad is not None
        }
        assert len(storages) == 1, "one bucket"


# --- compilation ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_compiled_model_takes_the_same_steps_and_its_weights_keep_their_names(
    tiny_training: Train, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(optimizer_module, "COMPILER", "aot_eager")  # all but the C++ compiler
    changes: dict[str, Any] = {"max_steps": 4, "checkpoint_every": 2, "log_every": 1, "eval_every": 2}
    plain, compiled = tiny_training(**changes), tiny_training(compile=True, **changes)
    said = capfd.readouterr().out
    assert re.search(r"compiled by step 1 in [\d.]+ s: [1-9]\d* graphs?, \d+ graph breaks?", said)
    assert said.count("compiled by step") == 1, "later steps compile nothing, nor does the plain training"
    resumed = tiny_training(compile=True, resume_from=compiled.checkpoint(2), **changes)
    assert_same_checkpoints(compiled.checkpoint(4), resumed.checkpoint(4))
    weights = [load_file(files.checkpoint(4) / "model" / "model.safetensors") for files in (plain, compiled)]
    assert weights[0].keys() == weights[1].keys()
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, rtol=1e-4, atol=1e-6)

    def no_compiler(graph: object, inputs: object) -> None:
        raise RuntimeError("g++ is missing")

    monkeypatch.setattr(optimizer_module, "COMPILER", no_compiler)
    with pytest.raises(SystemExit, match=r"compile=True: .*g\+\+ is missing.*set compile=False"):
        tiny_training(compile=True, **changes)


def test_a_compiled_encoder_gives_attention_no_mask_for_texts_without_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older versions of torch take a compiled graph for an export, for which transformers makes a mask."""
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, inputs: object) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(optimizer_module, "COMPILER", keep)
    monkeypatch.setattr(masking_utils, "is_torchdynamo_exporting", lambda: True)
    size = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = ModernBertModel(ModernBertConfig(**size, vocab_size=50, pad_token_id=0, global_attn_every_n_layers=1))
    compile_forward(model)
    model(input_ids=torch.ones(2, 16, dtype=torch.long))
    nodes = [node for graph in graphs for node in graph.graph.nodes]
    attention = [node for node in nodes if node.target is torch.nn.functional.scaled_dot_product_attention]
    assert [node.kwargs["attn_mask"] for node in attention] == [None, None]


# --- devices --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("visible", "refuses"), [(None, True), ("0", True), ("", False), ("-1", False)])
def test_gpus_that_torch_cannot_use_are_refused_unless_the_cpu_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, refuses: bool
) -> None:
    gpu = Device(0, "GPU-1", "NVIDIA H200", 10**11, 0, (), "0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(devices, "devices", lambda: [gpu])
    monkeypatch.setattr(devices, "driver_version", lambda: "570.1")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if refuses:
        with pytest.raises(LaunchError, match=r"NVIDIA H200.*driver 570\.1.*torch"):
            choose_device(0)
    else:
        assert choose_device(0) == torch.device("cpu")


def test_each_rank_of_a_node_has_a_gpu_of_its_own_or_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(LaunchError, match=r"WORLD_SIZE=8 without LOCAL_RANK.*or start them with torchrun"):
        choose_device(0)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert choose_device(3) == torch.device("cuda", 3)
    monkeypatch.delenv("LOCAL_RANK")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert choose_device(0) == torch.device("cuda", 0), "the scheduler shows each process its own"


# --- signals and heartbeats -----------------------------------------------------------------------


def test_signals_become_a_flag_and_nothing_else() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        assert not stop.requested
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
        eventually(lambda: stop.requested)
    assert signal.getsignal(signal.SIGTERM) is before


def beat(files: RunDir, rank: int = 0) -> dict[str, Any]:
    return read_json(files.heartbeat(rank)) or {}


def test_a_heartbeat_names_the_phase_and_since_when(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat_writer, "_BEAT_EVERY_S", 0.05)
    files = RunDir.create(project.runs, "x")
    heart = HeartbeatWriter(files, 0, StopRequest())
    assert beat(files)["phase"] == "start"
    assert beat(files)["pid"] == os.getpid()
    heart.enter("backward", 7)
    heart.enter("collective", 7)
    began = heart.phase.since
    eventually(lambda: beat(files)["phase"] == "collective")
    assert (beat(files)["phase"], beat(files)["step"], beat(files)["time"]) == ("collective", 7, began)
    assert beat(files)["nth"] == 2  # the first phase of a step counts as 1
    written = files.heartbeat(0).stat().st_mtime_ns
    time.sleep(0.3)
    assert files.heartbeat(0).stat().st_mtime_ns == written  # a phase that lasts is written once
    heart.enter("done", 8)
    heart.close()
    assert beat(files)["phase"] == "done"


# --- real processes -------------------------------------------------------------------------------

STUCK = """
import os, sys, time
from pathlib import Path
from nbtools.rundir.rundir import RunDir
from nbtools.training.process import heartbeat_writer
from nbtools.training.process.signals import StopRequest, die_with_agent
from nbtools.training.process.vote import Vote
heartbeat_writer._BEAT_EVERY_S = 0.1
with StopRequest() as stop:
    heartbeat_writer.HeartbeatWriter(RunDir(Path(sys.argv[1])), int(os.environ["RANK"]), stop)
    print("ready", flush=True)
    while True:
        time.sleep(1)
"""


def test_a_rank_stuck_in_a_collective_leaves_when_it_is_stopped_because_a_peer_died(project: Project) -> None:
    files = RunDir.create(project.runs, "x")
    script, log = project.root / "stuck.py", project.root / "log"
    script.write_text(STUCK)
    survivor, victim = start_ranks(script, [str(files.path)], [{"RANK": "0"}, {"RANK": "1"}], cwd=project.root, log=log)
    try:
        eventually(lambda: log.is_file() and log.read_text().count("ready") == 2)
        survivor.terminate()
        time.sleep(1)
        assert survivor.is_alive() and victim.is_alive(), "an ordinary stop: all peers are alive"
        victim.kill()
        survivor.join(300)
        assert survivor.exitcode == 1
    finally:
        survivor.kill()
        victim.kill()


def parent_death_signal() -> int:
    """The signal that the kernel sends to this process when its parent ends; 0 for none."""
    number = ctypes.c_int()
    assert ctypes.CDLL(None).prctl(2, ctypes.byref(number)) == 0  # PR_GET_PDEATHSIG
    return number.value


def test_a_process_without_an_agent_outlives_the_shell_that_started_it() -> None:
    """`test_ranks_in_the_middle_of_training_end_with_their_agent` has one."""
    before = parent_death_signal()
    die_with_agent()
    assert parent_death_signal() == before


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


TOGETHER = """
import os, time
from datetime import timedelta
import psutil
import torch.distributed as dist
from nbtools.errors import DataError
from nbtools.recipes import MLMPretrainingConfig
from nbtools.training.engine.flags import Flags
from nbtools.training.engine.worker import run

def note(worker, name, text):
    (worker.files.path / f"{name}-{worker.rank}").write_text(str(text))

def train(worker, config):
    assert worker.sum([worker.rank + 1.0, 0.5]) == [6.0, 1.5]
    assert worker.ranks.from_main(lambda: worker.rank) == 0
    assert worker.ranks.gather(worker.rank) == ([0, 1, 2] if worker.is_main else [])
    worker.ranks.in_turn(lambda: note(worker, "turn", [time.time(), time.sleep(0.2), time.time()]), one_by_one=True)
    try:
        worker.ranks.from_main(fail)
    except DataError as error:
        note(worker, "told", error)
    store = int(os.environ["MASTER_PORT"])  # of rank 0, in place of a launcher's
    open_ports = [each for each in psutil.Process().net_connections("inet") if each.status == psutil.CONN_LISTEN]
    note(worker, "listens", " ".join(each.laddr.ip for each in open_ports if each.laddr.port != store))
    worker.ranks.control = dist.new_group(backend="gloo", timeout=timedelta(seconds=4))
    worker.save({}, {}, {}, write_more=slowly)
    assert worker.sum([1.0]) == [3.0]
    for step in range(1, 5000):
        worker.progress.step = step
        time.sleep(0.001 * (1 + 4 * worker.rank))
        if step == 30 and worker.rank == 1:
            os.kill(os.getpid(), 15)
        if worker.stop_agreed():
            break
    note(worker, "stopped", step)

def fail():
    raise DataError("no data")

def slowly(folder):
    time.sleep(7)
    (folder / "weights").write_text("x")

run(train, Flags(MLMPretrainingConfig()))
"""
"""A save takes longer than a collective may."""


@pytest.mark.promise("guide-L6", "guide-A9")
def test_ranks_share_values_errors_and_a_stop_wait_for_a_save_and_listen_here_alone(
    cpu_project: Project, start: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    files = RunDir.create(cpu_project.runs, "two")
    monkeypatch.setenv("NBTOOLS_RUN_DIR", str(files.path))
    start.script.write_text(TOGETHER)
    codes, said = start.ended(start.script, nproc=3)
    assert codes == [0, 0, 0], said

    def noted(name: str) -> list[str]:
        return [(files.path / f"{name}-{rank}").read_text() for rank in range(3)]

    assert noted("told") == ["no data"] * 3
    turns = [ast.literal_eval(text) for text in noted("turn")]
    assert all(end <= begin for (*_, end), (begin, *_) in itertools.pairwise(turns)), "large models are built so"
    listening = " ".join(noted("listens")).split()
    assert len(listening) >= 3, "gloo: each rank listens for its peers"
    assert all(ipaddress.ip_address(ip).is_loopback for ip in listening)
    assert len({*noted("stopped")}) == 1
    assert 30 < int(noted("stopped")[0]) < 1500  # a vote takes place about every half second
    assert (read_json(files.finished) or {})["why"] == "stopped"
    assert not files.launch.exists()  # the launcher's files are the launcher's
    assert not files.process.exists()


@pytest.mark.parametrize(
    ("chosen", "local_world_size", "expected"), [(None, "2", "lo"), ("eth7", "2", "eth7"), (None, "1", None)]
)
def test_gloo_stays_on_this_machine_if_all_ranks_do_and_nobody_said_otherwise(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None, local_world_size: str, expected: str | None
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", chosen or "")
    if chosen is None:
        monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local_world_size)
    stay_on_this_machine()
    found = os.environ.get("GLOO_SOCKET_IFNAME")
    assert found == (devices.loopback() if expected == "lo" else expected)


LOADER = """
import os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset
from nbtools.training.process.signals import loader_worker_init

class Samples(Dataset):
    def __len__(self):
        return 10**6
    def __getitem__(self, index):
        return os.getpid()

os.setpgrp()
batches = iter(DataLoader(Samples(), None, num_workers=1, worker_init_fn=loader_worker_init()))
print("ready", flush=True)
print(next(batches), flush=True)
for line in sys.stdin:
    for _ in range(100):
        worker = next(batches)
    print(worker, flush=True)
    if line == "fail\\n":
        raise ValueError("with the iterator in the traceback")
"""


@pytest.mark.parametrize("end", ["fail", "kill"])
@pytest.mark.slow
def test_loader_workers_outlive_signals_to_their_group_but_never_their_rank(end: str) -> None:
    rank = subprocess.Popen(
        [sys.executable, "-c", LOADER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert rank.stdin is not None
    assert rank.stdout is not None
    try:
        assert rank.stdout.readline() == "ready\n"
        worker = int(rank.stdout.readline())
        assert worker != rank.pid
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            os.kill(worker, number)
        rank.stdin.write("go on\n")
        rank.stdin.flush()
        assert int(rank.stdout.readline()) == worker  # the same one: a new one would have another pid
        if end == "kill":
            rank.kill()
        else:
            rank.stdin.write("fail\n")
        rank.stdin.close()
        assert rank.wait(timeout=300) == {"fail": 1, "kill": -9}[end]
        eventually(lambda: not is_running(worker))
    finally:
        rank.kill()
        rank.stdout.close()
        rank.wait()
