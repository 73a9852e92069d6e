"""Sharded training (FSDP2): each rank keeps a part of every weight, gradient and moment, and gathers one block a time.

A block is a layer of the transformer. The embedding is gathered by itself, unless it shares its weights with the head;
all others with the root, the module given to `shard`. Where memory allows (see `layout_of`), weights are divided among
the ranks of one node only, so that no weight is gathered over the network, and accumulated gradients stay whole until
the last pass of a step, which reduces them once.

Every pass of a block is a collective. Therefore all ranks make the same passes in the same order: in evaluations (see
`sampler.batches_of_rank`), for samples, and in generation until the texts of all ranks have ended.
"""

import contextlib
import ctypes
import functools
import math
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import psutil
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from nbtools.config import TrainConfig
from nbtools.errors import ConfigError
from nbtools.launcher.checks.sizes import memory_of, num_trainable_parameters
from nbtools.training.process.ranks import Ranks

_M_MMAP_THRESHOLD = -3
"""Option of glibc's mallopt: from this size on, blocks come from mmap; once set, it no longer adapts."""


_USABLE = 0.8
"""Share of a device's memory that a choice of `layout_of` may fill: the figure is not that of every model."""


class Layout(NamedTuple):
    """How weights are divided among the ranks, and when their gradients are reduced."""

    num_shards: int
    """Parts of the weights: as many as ranks, or as ranks of a node."""
    num_replicas: int = 1
    """Nodes of which each has all parts."""
    reduces_once: bool = True
    """Whether gradients stay whole until the last accumulated pass; else each pass adds to this rank's part of them."""


def layout_of(config: TrainConfig, ranks: Ranks) -> Layout:
    """Return how to divide the weights: what takes more memory only if it is known to fit; every rank calls it.

    Nodes have replicas only if each has as many ranks, with successive numbers.
    """
    on_node = int(os.environ.get("LOCAL_WORLD_SIZE", ranks.world_size))
    on_gpu = ranks.device.type == "cuda"
    own = torch.cuda.mem_get_info(ranks.device)[1] if on_gpu else psutil.virtual_memory().total / on_node
    most, fewest, is_mixed, least = ranks.max([on_node, -on_node, ranks.rank % on_node != ranks.local_rank, -own])
    num_trained = num_trainable_parameters(config) or 0

    def fits(num_shards: int, more: float) -> bool:
        memory = memory_of(config, num_shards, config.precision)
        return memory is not None and memory.activations is not None and memory.total + more <= -least * _USABLE

    has_nodes = most == -fewest and not is_mixed and not ranks.world_size % on_node
    num_shards = on_node if has_nodes and on_node > 1 and fits(on_node, 0) else ranks.world_size
    num_whole = num_trained * (1 - 1 / num_shards)
    return Layout(num_shards, ranks.world_size // num_shards, fits(num_shards, 4 * num_whole))


def shard(module: nn.Module, device: torch.device, compute_type: torch.dtype | None, layout: Layout) -> None:
    """Divide the weights of `module` among the ranks, by rows, and move them to this rank's device.

    Their values come from rank 0, one weight after the other. Weights keep their type; a forward pass computes with
    `compute_type`, if given, and gradients are then reduced in fp32. Methods that `module.forward_methods` names gather
    the weights as `forward` does.

    Raises:
        ConfigError: the model has no blocks, or a weight that cannot be divided.
    """
    if scalar := next((name for name, weight in module.named_parameters() if not weight.ndim), None):
        raise ConfigError(f"strategy='fsdp': {scalar} is a single number, which cannot be divided; use strategy='ddp'")
    units = [*blocks_of(module), *_own_tables(module)]
    if device.type == "cpu":
        _give_back_freed_memory()
    sizes = {"replicas": layout.num_replicas, "shards": layout.num_shards}
    if layout.num_replicas == 1:
        del sizes["replicas"]
    mesh = init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    reduce_type = None if compute_type is None else torch.float32
    # Inputs keep their type: a weight of a loss has no place in bf16, and autocast is on in any case.
    policy = MixedPrecisionPolicy(param_dtype=compute_type, reduce_dtype=reduce_type, cast_forward_inputs=False)
    given = {name: weight.detach() for name, weight in module.named_parameters()}
    buffers = {name: buffer.to(device) for name, buffer in module.named_buffers()}
    for unit in units:
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    fully_shard(module, mesh=mesh, mp_policy=policy)
    module.reduces_once = layout.reduces_once  # type: ignore[assignment]
    if any(weight.is_meta for weight in given.values()):
        module.to_empty(device=device)
    else:
        module.to(device)
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(buffers[name])
            dist.broadcast(buffer, src=0)
        for name, weight in module.named_parameters():
            value = given.pop(name)
            value = torch.empty_like(value, device=device) if value.is_meta else value.to(device)
            dist.broadcast(value, src=0)
            own_part(weight).copy_(own_rows_of(weight, value))
    for name in getattr(module, "forward_methods", ()):
        _gather_for(module, name)


def _give_back_freed_memory() -> None:
    """Let glibc return freed tensors to the system; another C library is left as it is.

    It would keep those below 32 MB for itself once a tensor of that size was freed. Gathered weights are freed block by
    block, and two ranks of a model of 84 M weights grew by 400 MB in each of the first steps.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, 2**20)


@contextlib.contextmanager
def without_weights() -> Iterator[None]:
    """Build modules whose weights have shapes but no values; buffers are complete."""
    register = nn.Module.register_parameter

    def register_empty(module: nn.Module, name: str, weight: nn.Parameter | None) -> None:
        if weight is not None and not weight.is_meta:
            weight = nn.Parameter(weight.detach().to("meta"), requires_grad=weight.requires_grad)
        register(module, name, weight)

    try:
        nn.Module.register_parameter = register_empty  # type: ignore[method-assign, assignment]
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def leaves_out_weights() -> bool:
    """Whether a module that is built now has no values in its weights."""
    return nn.Module.register_parameter.__name__ == "register_empty"


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """Return the members of lists of equal layers in `transformers` models, outermost first; ConfigError if none."""
    models = [part for part in module.modules() if isinstance(part, PreTrainedModel)]
    blocks = [block for model in models[:1] for block in _layers(model.base_model)]  # others are parts of the first
    if not blocks:
        names = ", ".join(sorted({type(model).__name__ for model in models})) or type(module).__name__
        raise ConfigError(
            f"strategy='fsdp': {names} has no list of equal layers to divide by; use strategy='ddp' for this model"
        )
    return blocks


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    for part in module.children():
        members = [*part.children()] if isinstance(part, nn.ModuleList) else []
        if members and len({type(member) for member in members}) == 1 and any(True for _ in members[0].parameters()):
            yield from members
        else:
            yield from _layers(part)


def _own_tables(module: nn.Module) -> list[nn.Module]:
    """Return the embedding of a model whose head has a table of its own; others may read the embedding's (DeBERTa).

    The head stays with the root: a loss over a large vocabulary calls it for one chunk of positions after the other,
    and each call of a part that is gathered by itself would reduce its gradients.
    """
    model = next(part for part in module.modules() if isinstance(part, PreTrainedModel))
    if getattr(model.config, "tie_word_embeddings", False):
        return []
    try:
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()  # type: ignore[no-untyped-call]
    except NotImplementedError:  # CANINE has several small tables
        return []
    own = getattr(head, "weight", None)
    return [] if own is None or own is embedding.weight or own.shape != embedding.weight.shape else [embedding]


def _gather_for(module: Any, name: str) -> None:
    """Let a method gather the root's weights, unless it is called within `forward` or another such method."""
    plain = getattr(module, name)
    register_fsdp_forward_method(module, name)
    gathering = getattr(module, name)

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        if module.is_gathered:
            return plain(*args, **kwargs)
        module.is_gathered = True
        try:
            return gathering(*args, **kwargs)
        finally:
            module.is_gathered = False

    if not hasattr(module, "is_gathered"):
        module.is_gathered = False
        module.register_forward_pre_hook(functools.partial(_set_gathered, True), prepend=True)
        module.register_forward_hook(functools.partial(_set_gathered, False), always_call=True)
    setattr(module, name, call)


def _set_gathered(value: bool, module: Any, *_: Any) -> None:
    module.is_gathered = value


def release(module: nn.Module) -> None:
    """Free the weights that the last forward pass gathered; `module` then holds this rank's rows only."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def reduce_gradients(module: Any, *, is_last: bool) -> None:
    """Let the next backward pass of a sharded module reduce gradients over ranks as far as its layout says.

    Those of the last accumulated pass are always reduced; without whole ones the others are, within a node.
    """
    (module.set_requires_gradient_sync if module.reduces_once else module.set_requires_all_reduce)(is_last)


def is_sharded(module: nn.Module) -> bool:
    """Whether weights of `module` are divided among the ranks."""
    return any(isinstance(part, FSDPModule) for part in module.modules())


def true_on_all(flag: Tensor, model: nn.Module) -> bool:
    """Return a flag of this rank; if `model` is sharded, whether it is true on all ranks, which must all call this."""
    if is_sharded(model):
        flag = flag.int()
        dist.all_reduce(flag, dist.ReduceOp.MIN)
    return bool(flag)


def own_part(tensor: Tensor) -> Tensor:
    """Return this rank's rows of a sharded tensor, which share its memory; another tensor itself."""
    with torch.no_grad():
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def own_rows(tensor: Tensor) -> tuple[int, int]:
    """Return the first of this rank's rows of a tensor, and the one after the last; all if it is not sharded."""
    rows = tensor.shape[0] if tensor.ndim else 0
    if not isinstance(tensor, DTensor):
        return 0, rows
    mesh = tensor.device_mesh
    first = min(mesh.get_local_rank(mesh.ndim - 1) * math.ceil(rows / mesh.shape[-1]), rows)
    return first, first + tensor.to_local().shape[0]


def is_in_checkpoint(tensor: Tensor) -> bool:
    """Whether this rank writes its rows of a tensor: only the first replica of a sharded one does."""
    return not (isinstance(tensor, DTensor) and tensor.device_mesh.ndim > 1 and tensor.device_mesh.get_local_rank(0))


def own_rows_of(weight: Tensor, value: Any) -> Tensor:
    """Return the rows of a whole tensor that this rank has of `weight`; `value` is one, or a `StoredTensor`."""
    rows: Tensor = value[slice(*own_rows(weight))] if isinstance(weight, DTensor) else value[...]
    return rows


def all_ranks_value(tensor: Tensor) -> Tensor:
    """Return a value that all ranks have; that of a sharded tensor is summed up over them."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
