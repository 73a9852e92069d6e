"""AdamW and the parts of an optimizer step: accumulation, autocast, compilation, schedule, clipping, averages."""

import contextlib
import functools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel, masking_utils

from nbtools.config import TrainConfig
from nbtools.errors import CheckpointError, ConfigError, DivergedError
from nbtools.launcher.checks.step_count import learning_rate, moved_rate, rate_settings
from nbtools.training.sharding.fsdp import all_ranks_value, own_part, own_rows_of, reduce_gradients, release
from nbtools.training.sharding.sharded_checkpoint import rows_like

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Autocast dtype by precision."""
COMPILER = "inductor"
"""Backend of torch.compile."""


def accumulating(model: torch.nn.Module, *, is_last: bool) -> contextlib.AbstractContextManager[Any]:
    """Context for a forward pass: its gradients are averaged over ranks if it is the last one of a step.

    Sharded ones are in every pass, if they do not fit whole (see `sharding.fsdp.layout_of`).
    """
    if isinstance(model, FSDPModule):
        reduce_gradients(model, is_last=is_last)
    if is_last or not isinstance(model, DistributedDataParallel):
        return contextlib.nullcontext()
    return model.no_sync()


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Context for the forward pass in bf16 or fp16; weights and optimizer stay fp32."""
    return torch.autocast(device.type, dtype=TYPES.get(precision, torch.bfloat16), enabled=precision in TYPES)


def enable_gradient_checkpointing(module: torch.nn.Module) -> None:
    """Turn on gradient checkpointing in every model of `transformers` in `module`; ConfigError if one has none."""
    models = [part for part in module.modules() if isinstance(part, PreTrainedModel)]
    for model in models:
        if any(model in other.modules() for other in models if other is not model):
            continue  # the outermost one does it for its parts
        if not model.supports_gradient_checkpointing:
            raise ConfigError(f"gradient_checkpointing=True: {type(model).__name__} does not support it; turn it off")
        model.activation_checkpointing_enable({"use_reentrant": False})


def compile_forward(module: torch.nn.Module, *, only_training: bool = False) -> None:
    """Let torch.compile compile the forward pass of `module` at its first call; its weights keep their names.

    Of a sharded model, this is done with each block, after it was sharded: FSDP2 gathers and frees the weights in hooks
    around `forward`, outside the graph, and gives the block a class of its own, in whose `forward` a checkpointed block
    recomputes its activations, inside the graph. Blocks with the same code share their graphs.

    A compiled graph of torch before 2.13 takes itself for an export. transformers then gives attention a mask of ones,
    with which the fast kernels are not used: on an H200, steps of a model of 26 layers were no faster than without
    compilation, and took 10 GB more.

    Args:
        only_training: whether passes without gradients stay as they are. Evaluations, samples and generated texts have
            many lengths, and caches that grow.
    """
    if getattr(getattr(module, "attention", None), "local", False):  # CANINE's, which loops over parts of a text
        return
    if hasattr(masking_utils, "is_torchdynamo_exporting"):
        masking_utils.is_torchdynamo_exporting = lambda: False
    plain, compiled = module.forward, torch.compile(module.forward, backend=COMPILER)

    @functools.wraps(plain)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return (compiled if torch.is_grad_enabled() else plain)(*args, **kwargs)

    module.forward = forward if only_training else compiled


@contextlib.contextmanager
def compile_errors() -> Iterator[None]:
    """Add to an error of torch.compile how to train without it, as a ConfigError."""
    try:
        yield
    except RuntimeError as error:
        if "torch._dynamo" not in sys.modules or not isinstance(error, torch._dynamo.exc.TorchDynamoException):
            raise
        what = str(error).strip().partition("\n\nSet ")[0].replace("\n", " ")[:500]
        raise ConfigError(f"compile=True: the model could not be compiled ({what}); set compile=False") from error


def compiled_graphs() -> tuple[int, int, float]:
    """Return what torch.compile has made in this process, recompilations included: graphs, graph breaks, seconds."""
    if "torch._dynamo" not in sys.modules:
        return 0, 0, 0.0
    counters, spent_s = torch._dynamo.utils.counters, torch._dynamo.utils.calculate_time_spent()
    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values()), spent_s["total_wall_time"]


class WeightCopy:
    """A copy of weights, or their exponential moving averages, in fp32 as they are; a rank has that of its own rows."""

    def __init__(self, model: torch.nn.Module, weights: Sequence[torch.Tensor]) -> None:
        self._model, self._weights = model, weights
        self.values = [weight.detach().clone() for weight in weights]

    @torch.no_grad()
    def update(self, decay: float) -> None:
        """Take in the weights of a step."""
        values, weights = ([own_part(each) for each in every] for every in (self.values, self._weights))
        torch._foreach_lerp_(values, weights, 1 - decay)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the values by their number, for a checkpoint."""
        return {str(number): value for number, value in enumerate(self.values)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; an empty mapping changes nothing."""
        _restore(self.values, state)

    @torch.no_grad()
    def exchange(self) -> None:
        """Let copy and weights change places, one by one: a whole copy would take as much memory again."""
        release(self._model)
        for value, weight in zip(self.values, self._weights, strict=True):
            copied, own = own_part(value), own_part(weight)
            kept = own.clone()
            own.copy_(copied)
            copied.copy_(kept)


@torch.no_grad()
def _restore(weights: Sequence[torch.Tensor], state: Mapping[str, Any]) -> None:
    """Copy values, by the number of their weight, into weights; of sharded ones only this rank's rows."""
    for number, value in state.items():
        weight = weights[int(number)]
        own_part(weight).copy_(own_rows_of(weight, value))


class Optimizer:
    """AdamW with weight decay on matrices only, with its schedule, gradient clipping and loss scale.

    Under fp16 the loss is scaled up, so that small gradients do not underflow; a step whose gradients overflow is
    skipped and the scale decreases (Micikevicius et al. 2017, arXiv 1710.03740). In every precision, a step with a
    non-finite gradient norm changes neither weights nor moments. DDP has averaged the gradients by then, and the norm
    of sharded ones is that of all ranks: all see the same norm and skip the same steps.

    Args:
        may_average: whether the config's `ema_decay` is for this model.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        config: TrainConfig,
        total_steps: int,
        device: torch.device,
        *,
        may_average: bool = True,
    ) -> None:
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        groups = [
            {"params": [weight for weight in weights if weight.ndim >= 2], "weight_decay": config.weight_decay},
            {"params": [weight for weight in weights if weight.ndim < 2], "weight_decay": 0.0},
        ]
        betas = (config.adam_beta1, config.adam_beta2)
        self.adamw = torch.optim.AdamW(groups, lr=config.learning_rate, betas=betas, fused=True)
        # DDP's gradients are parts of its buckets. Dropped ones would be allocated a second time, beside the buckets. A
        # weight that is unused in some steps has to drop its own: AdamW would take a step for a gradient of zeros.
        self._keeps_gradients = isinstance(model, DistributedDataParallel) and not model.find_unused_parameters
        self.model = model
        self.weights = weights
        self._config = config
        self._total_steps = total_steps
        self._may_average = may_average
        self.averages: WeightCopy | None = None
        self._norm = torch.zeros(())
        self._rate = 0.0
        self._before: dict[str, Any] | None = None
        self.note = ""
        """Sentence on the learning rate at the first step after a resume, if that has moved it."""
        self._skipped = torch.zeros((), dtype=torch.int64, device=device)
        self._skipped_in_a_row = torch.zeros_like(self._skipped)
        self._scaler = self._new_scaler()

    def replan(self, config: TrainConfig, total_steps: int) -> None:
        """Take the learning rates of another config or end from the next step on."""
        if rate_settings(config, total_steps) != (before := rate_settings(self._config, self._total_steps)):
            self._before = {**before, "rate": self._rate}
        self._config, self._total_steps = config, total_steps
        if bool(config.ema_decay and self._may_average) != (self.averages is not None):
            self._start_averages()

    def _start_averages(self) -> None:
        """Average the weights from now on, if the config says so."""
        wanted = self._config.ema_decay and self._may_average
        self.averages = WeightCopy(self.model, self.weights) if wanted else None

    def keep_averages(self) -> None:
        """Leave the averages in the place of the weights: the training has ended."""
        if self.averages is not None:
            self.averages.exchange()
            self.averages = None

    def _new_scaler(self) -> torch.amp.GradScaler:
        return torch.amp.GradScaler(self._skipped.device.type, enabled=self._config.precision == "fp16")

    def forget_moments(self) -> None:
        """Start again without moments and with the first loss scale, for another loss."""
        self.adamw.state.clear()
        self._scaler = self._new_scaler()

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of `loss`."""
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def step(self, step: int, rate: float | None = None) -> None:
        """Clip, do the optimizer step `step` (counted from 1), and clear the gradients; rarely waits for the GPU.

        The learning rate is `rate`, by default that of the config's schedule.

        Raises:
            DivergedError: `max_skipped_steps` consecutive steps had a non-finite gradient norm.
        """
        self._rate = learning_rate(self._config, step, self._total_steps) if rate is None else rate
        if self._before is not None:
            before, last = self._before, self._before.pop("rate")
            own, is_given = rate_settings(self._config, self._total_steps), rate is not None
            self.note, self._before = moved_rate(before, own, step - 1, (last, self._rate) if is_given else None), None
        for group in self.adamw.param_groups:
            group["lr"] = self._rate
        self._scaler.unscale_(self.adamw)
        gradients = [weight.grad for weight in self.weights if weight.grad is not None]
        self._norm = all_ranks_value(torch.nn.utils.get_total_norm(gradients))
        torch.nn.utils.clip_grads_with_norm_(self.weights, self._config.gradient_clip or math.inf, self._norm)
        is_broken = ~torch.isfinite(self._norm)
        self._skipped += is_broken
        self._skipped_in_a_row = (self._skipped_in_a_row + 1) * is_broken
        if self._scaler.is_enabled():
            self._scaler.step(self.adamw)
            self._scaler.update()
        else:  # the fused kernel reads it on the device, and then changes nothing: the host need not wait
            self.adamw.found_inf = is_broken.float()  # type: ignore[attr-defined]
            self.adamw.step()
        self.adamw.zero_grad(set_to_none=not self._keeps_gradients)
        if self.averages is not None:
            self.averages.update(self._config.ema_decay)
        limit = self._config.max_skipped_steps
        if self._skipped.device.type == "cpu" or step % limit == 0:  # on a GPU, reading the count waits for it
            self._check_skipped(step, limit)

    def _check_skipped(self, step: int, limit: int) -> None:
        count = int(self._skipped_in_a_row)
        # Under fp16 each skipped step halves the loss scale: a search for a scale is over far above this one.
        if count < limit or (self._scaler.is_enabled() and self._scaler.get_scale() > 2.0**-limit):
            return
        raise DivergedError(
            f"step {step}: the gradient norm is {float(self._norm)}, and not finite in {count} consecutive optimizer "
            f"steps (max_skipped_steps={limit}); these steps changed no weight. Resume from the latest checkpoint with "
            "a lower learning_rate or a smaller gradient_clip, or look for values in the data that make the loss NaN"
        )

    @property
    def num_skipped(self) -> int:
        """Number of steps skipped for a non-finite gradient norm, earlier runs included; waits for the GPU."""
        return int(self._skipped)

    def has_finite_weights(self) -> bool:
        """Whether every weight, or this rank's part of it, is finite; waits for the GPU."""
        return all(bool(torch.isfinite(own_part(weight)).all()) for weight in self.weights)

    def metrics(self) -> dict[str, float]:
        """Return values of the last step for a metric row: learning rate, gradient norm before clipping, loss scale."""
        row, norm = {"train/learning_rate": self._rate}, float(self._norm)
        if self._scaler.is_enabled():
            row["train/loss_scale"] = self._scaler.get_scale()
        if math.isfinite(norm) or not self._scaler.is_enabled():  # an overflow under fp16 is normal
            row["train/grad_norm"] = norm
        return row

    def state_dict(self) -> dict[str, Any]:
        """Return moments, loss scale and number of skipped steps, for a checkpoint.

        With averages, those are what a checkpoint has as the model; the trained weights are then here.
        """
        state: dict[str, Any] = {"optimizer": self.adamw.state_dict()["state"]}
        state["rates"] = {**rate_settings(self._config, self._total_steps), "rate": self._rate}
        state["skipped"] = [int(self._skipped), int(self._skipped_in_a_row)]
        if self._scaler.is_enabled():
            state["scaler"] = self._scaler.state_dict()
        if self.averages is not None:  # they change places with the trained weights while a checkpoint is written
            state["trained"] = self.averages.state_dict()
        return state

    @staticmethod
    def _moment(weight: torch.Tensor, value: Any) -> torch.Tensor:
        if tuple(value.shape) != tuple(weight.shape):
            raise CheckpointError(
                f"the optimizer state is of another model: a moment is {tuple(value.shape)}, its weight "
                f"{tuple(weight.shape)}"
            )
        return rows_like(weight, value)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a copy of what `state_dict` returned, with the weights of its checkpoint; or from the weights.

        Learning rate, weight decay and other settings stay those of the current config.

        Raises:
            CheckpointError: it is of another model.
        """
        self._start_averages()
        _restore(self.weights, state.get("trained", {}))
        if "optimizer" in state:
            groups = self.adamw.state_dict()["param_groups"]
            weights = [weight for group in self.adamw.param_groups for weight in group["params"]]
            if len(state["optimizer"]) > len(weights):
                raise CheckpointError(
                    f"the optimizer state is of {len(state['optimizer'])} weights, the model has {len(weights)}"
                )
            moments = {
                number: {
                    name: value if name == "step" else self._moment(weights[number], value)
                    for name, value in saved.items()
                }
                for number, saved in state["optimizer"].items()
            }
            self.adamw.load_state_dict({"state": moments, "param_groups": groups})
            for own in self.adamw.state.values():  # on the CPU, AdamW keeps the tensors that it is given
                own.update({name: value.clone() for name, value in own.items() if value.device.type == "cpu"})
        if (rates := state.get("rates")) and rates["rate"]:  # else it took no step yet: no rate moves
            self._before, self._rate = dict(rates), rates["rate"]
        if "scaler" in state and self._scaler.is_enabled():
            self._scaler.load_state_dict(state["scaler"])
        if "skipped" in state:
            self._skipped.fill_(state["skipped"][0])
            self._skipped_in_a_row.fill_(state["skipped"][1])
