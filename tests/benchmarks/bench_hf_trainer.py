"""The recipe's loop against `transformers.Trainer`: the same model on the same masked batches, one process each.

    python tests/benchmarks/bench_hf_trainer.py [rounds] [ranks]

Goals: at least 1.8 x as many steps per second as the Trainer with the model as it comes, at least 1.0 x as many as with
`sparse_prediction=True`, at equal losses. The three processes take turns in blocks of steps, so that a busy machine is
equally busy for all; CPU time counts. The Trainer gets batches that are masked already, no progress bar, no evaluation
and no checkpoint; it logs as often as the recipe.

With two ranks both divide the weights among them (FSDP2), on gloo; the goal is 1.0 x the Trainer's rate. accelerate
has FSDP2 on accelerators only: here its state is told that it has it on CPUs, too; all else is its own.

The Trainer needs the package accelerate, which comes with peft.
"""

import importlib.util
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rounds import Cost, print_costs

GOALS = {"Trainer as it comes": 1.8, "Trainer, sparse_prediction": 1.0}
BLOCK = 10
TOLERANCE = 1e-3


def main(rounds: int = 12, num_ranks: int = 1) -> None:
    """Print times per step, ratios of rates, and how far the losses are apart."""
    if importlib.util.find_spec("accelerate") is None:
        sys.exit("transformers.Trainer needs the package accelerate, which is not installed: pip install accelerate")
    os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    contenders: dict[str, Callable[[str, int, Connection], None]] = {"recipe": recipe}
    if num_ranks == 1:
        contenders["Trainer as it comes"] = trainer
    contenders["Trainer, sparse_prediction"] = sparse_trainer
    times: dict[str, list[Cost]] = {name: [] for name in contenders}
    losses: dict[str, list[float]] = {name: [] for name in contenders}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "runs").mkdir()
        tokenized(folder)
        spawn, processes = get_context("spawn"), []
        pipes: dict[str, list[Connection]] = {name: [] for name in contenders}
        for name, contender in contenders.items():
            port = free_port()
            for rank in range(num_ranks):
                own, theirs = spawn.Pipe()
                arguments = (contender, folder, rounds, theirs, rank, num_ranks, port)
                processes.append(spawn.Process(target=on_rank, args=arguments, daemon=True))
                processes[-1].start()
                theirs.close()
                pipes[name].append(own)
        for own in (pipe for of_ranks in pipes.values() for pipe in of_ranks):
            own.recv()  # it is ready for its first step
        for number in range(rounds + 1):
            for name in sorted(pipes, reverse=number % 2 == 0):
                for pipe in pipes[name]:
                    pipe.send("go")
                measured = [pipe.recv() for pipe in pipes[name]]
                losses[name].append(measured[0][2])
                if number:  # the first block warms up
                    times[name].append(Cost(measured[0][0] / BLOCK, sum(cpu for _, cpu, _ in measured) / BLOCK))
        for process in processes:
            process.join()
    print(f"{rounds} rounds of {BLOCK} steps, {num_ranks} x one thread each")
    print_costs(times)
    for name in [*contenders][1:]:
        goal = GOALS[name]
        ratio = statistics.median(peer[1] / own[1] for peer, own in zip(times[name], times["recipe"], strict=True))
        apart = max(abs(one - other) for one, other in zip(losses[name], losses["recipe"], strict=True))
        print(
            f"recipe is {ratio:.2f} x as fast as {name}, by CPU time (goal >= {goal}): "
            f"{'reached' if ratio >= goal else 'MISSED'}; losses differ by {apart:.1e} at most: "
            f"{'equal' if apart <= TOLERANCE else 'NOT EQUAL'} (last: {losses[name][-1]:.4f})",
            flush=True,
        )


def on_rank(
    contender: Callable[[str, int, Connection], None],
    folder: str,
    rounds: int,
    pipe: Connection,
    rank: int,
    num_ranks: int,
    port: int,
) -> None:
    """Run a contender as one of several processes, as a launcher would start it."""
    if num_ranks > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ |= {name: str(rank) for name in ("RANK", "LOCAL_RANK")}
        os.environ |= {name: str(num_ranks) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    contender(folder, rounds, pipe)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Turns:
    """Blocks of steps, each when the others wait."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.mark: tuple[float, float] | None = None

    def next(self, loss: float) -> None:
        """Report the block that is done, if any, and wait for the next turn."""
        if self.mark is None:
            self.pipe.send("ready")
        else:
            self.last(loss)
        self.pipe.recv()
        self.mark = time.perf_counter(), time.process_time()

    def last(self, loss: float) -> None:
        """Report the last block."""
        assert self.mark is not None
        self.pipe.send((time.perf_counter() - self.mark[0], time.process_time() - self.mark[1], loss))


def demo(rounds: int) -> Any:
    """The config of all three: the CPU demo at a constant learning rate, as schedules differ in their first step."""
    from nbtools.recipes import RECIPES

    never = 10**6
    config, _ = RECIPES["mlm_pretraining"].preset("cpu_demo")
    return config.replace(
        max_steps=BLOCK * (rounds + 1),
        epochs=never,
        log_every=BLOCK,
        eval_every=never,
        checkpoint_every=never,
        learning_rate=1e-3,
        lr_schedule="constant",
        warmup_ratio=0.0,
        strategy="ddp" if num_ranks() == 1 else "fsdp",
    )


def num_ranks() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def tokenized(folder: str) -> Any:
    """The text of all three, tokenized once."""
    from nbtools.training.mlm_pretraining.dataset import open_tokenized, tokenize

    config = demo(1)
    cache = Path(folder) / "runs" / ".cache"
    return open_tokenized(tokenize(cache, config).folder, config.sequence_length)


def recipe(folder: str, rounds: int, pipe: Connection) -> None:
    """Run the recipe's own `train`, which stops between blocks."""
    from nbtools.rundir.rundir import RunDir
    from nbtools.training.engine.flags import Flags
    from nbtools.training.engine.worker import Worker, run
    from nbtools.training.mlm_pretraining import train

    os.environ["NBTOOLS_ROOT"] = folder
    path = Path(folder) / "runs" / "bench"
    path.mkdir(exist_ok=True)
    os.environ["NBTOOLS_RUN_DIR"] = str(RunDir(path).path)
    config, turns = demo(rounds), Turns(pipe)
    real_begin, real_end = Worker.begin, Worker.end_step

    def begin(worker: Worker, *arguments: Any, **derived: Any) -> None:
        real_begin(worker, *arguments, **derived)  # the last thing before the first step
        turns.next(0.0)

    def end_step(worker: Worker, values: Any, *arguments: Any) -> None:
        real_end(worker, values, *arguments)
        step = worker.progress.step
        if step % BLOCK == 0:
            (turns.last if step == config.max_steps else turns.next)(values["train/loss"])

    Worker.begin, Worker.end_step = begin, end_step  # type: ignore[method-assign]
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - its banner
    run(train.train, Flags(config))


def sparse_trainer(folder: str, rounds: int, pipe: Connection) -> None:
    """The Trainer with the model's own way to compute the head at predicted positions only."""
    trainer(folder, rounds, pipe, sparse=True)


def trainer(folder: str, rounds: int, pipe: Connection, *, sparse: bool = False) -> None:
    """Run `transformers.Trainer`, which stops between blocks."""
    import torch
    from torch.distributed.tensor import DTensor
    from torch.utils.data import Dataset
    from transformers import ModernBertConfig, ModernBertForMaskedLM, Trainer, TrainerCallback, TrainingArguments

    from nbtools.recipes.built_models import modernbert_settings
    from nbtools.training.engine.sampler import SampleOrder, load
    from nbtools.training.mlm_pretraining.masking import MaskedTraining, Masking
    from nbtools.training.process.device import seed_everything

    config, text, turns = demo(rounds), tokenized(folder), Turns(pipe)
    masking = Masking.of(text, config.mask_probability, config.seed)
    rank = int(os.environ.get("RANK", "0"))
    order = SampleOrder(len(text.train), config.batch_size, seed=config.seed, rank=rank, world_size=num_ranks())
    batches: Iterator[Any] = load(MaskedTraining(text.train, masking), order)

    class Batches(Dataset[Any]):
        def __len__(self) -> int:
            return config.max_steps

        def __getitem__(self, _: int) -> dict[str, torch.Tensor]:
            inputs_BT, positions_BK, labels_BK = next(batches)
            labels_BT = torch.full_like(inputs_BT, -100).scatter(1, positions_BK, labels_BK)
            return {"input_ids": inputs_BT, "labels": labels_BT}

    class TakesTurns(TrainerCallback):
        loss = 0.0

        def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
            self.loss = logs.get("loss", self.loss)

        def on_step_begin(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            if state.global_step % BLOCK == 0:
                turns.next(self.loss)

        def on_train_end(self, *_: Any, model: Any, **__: Any) -> None:
            assert num_ranks() == 1 or all(isinstance(weight, DTensor) for weight in model.parameters())
            turns.last(self.loss)

    sharding: dict[str, Any] = {}
    if num_ranks() > 1:
        shard_on_cpus()
        settings = {"version": 2, "transformer_layer_cls_to_wrap": ["ModernBertEncoderLayer"]}
        sharding = {"fsdp": True, "fsdp_config": settings, "ddp_backend": "gloo"}
    seed_everything(config.seed, 0, deterministic=False)
    model = ModernBertForMaskedLM(
        ModernBertConfig(**modernbert_settings(config, len(text.tokenizer)), sparse_prediction=sparse)
    )
    arguments = TrainingArguments(
        output_dir=str(Path(folder) / "trainer"),
        use_cpu=True,
        per_device_train_batch_size=1,  # each item is a whole batch
        max_steps=config.max_steps,
        learning_rate=config.learning_rate,
        lr_scheduler_type="constant",
        weight_decay=config.weight_decay,
        adam_beta2=0.98,
        max_grad_norm=config.gradient_clip,
        logging_steps=BLOCK,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **sharding,
    )
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - its log
    Trainer(
        model=model,
        args=arguments,
        train_dataset=Batches(),
        data_collator=lambda items: items[0],
        callbacks=[TakesTurns()],
    ).train()


def shard_on_cpus() -> None:
    """Let accelerate take CPUs for devices with FSDP2."""
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedType

    real = AcceleratorState.__init__

    def init(state: Any, *arguments: Any, fsdp_plugin: Any = None, **options: Any) -> None:
        real(state, *arguments, fsdp_plugin=fsdp_plugin, **options)
        if fsdp_plugin is not None:
            state.distributed_type, state.fsdp_plugin = DistributedType.FSDP, fsdp_plugin

    AcceleratorState.__init__ = init


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
