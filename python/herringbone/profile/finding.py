"""Finds the model that a script trains: the module with all parameters of the optimizer whose forward is called."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import GradBucket
from torch.nn.parallel import DistributedDataParallel

from .buckets import FIRST_BYTES, grouped
from .document import ELEMENT_BYTES, Buckets, Layer, Parameter
from .problems import ProfileError

__all__ = [
    "buckets_of",
    "candidates",
    "children_of",
    "inner",
    "is_compiled",
    "layers_of",
    "leave_sums_out",
    "outline",
    "parameters_of",
    "reported_buckets",
    "wrapper_of",
]

SHARDED = ("FullyShardedDataParallel", "FSDPModule")
"""Wrappers that divide parameters among ranks."""


def candidates(optimizer: torch.optim.Optimizer) -> list[torch.nn.Module]:
    """The outermost modules that have all parameters of an optimizer.

    Raises:
        ProfileError: only several modules together have them, or no module has them.
    """
    wanted = parameters_of(optimizer)
    gc.collect()
    # Checked by class, because objects of some other libraries run their own code in isinstance.
    modules = [each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module) and "_modules" in each.__dict__]
    holding = [each for each in modules if wanted & {id(parameter) for parameter in each.parameters()}]
    inside = {id(child) for each in holding for child in each.children()}
    outermost = [each for each in holding if id(each) not in inside]
    found = [each for each in outermost if wanted <= {id(parameter) for parameter in each.parameters()}]
    if found:
        return found
    if not outermost:
        raise ProfileError(
            f"{type(optimizer).__name__} updates {len(wanted)} parameters that no torch.nn.Module has: a profile describes a "
            "module's layers, so put them into one"
        )
    names = ", ".join(sorted(type(each).__name__ for each in outermost))
    raise ProfileError(
        f"{type(optimizer).__name__} updates parameters of several models ({names}), but a profile has one. Put them into one torch.nn.Module "
        "whose forward calls them, or profile a script that trains one of them"
    )


def parameters_of(optimizer: torch.optim.Optimizer) -> set[int]:
    """The parameters that an optimizer updates, by their ids."""
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def children_of(modules: Iterable[torch.nn.Module], wanted: set[int]) -> list[torch.nn.Module]:
    """Modules directly within these that have all wanted parameters, for wrappers whose own forward is never called."""
    found = [child for module in modules for child in module.children()]
    return [child for child in found if wanted <= {id(parameter) for parameter in child.parameters()}]


def inner(module: torch.nn.Module) -> torch.nn.Module:
    """The model without the wrappers of DDP and of ``torch.compile``."""
    while True:
        below = module.module if isinstance(module, DistributedDataParallel) else module._modules.get("_orig_mod")
        if not isinstance(below, torch.nn.Module):
            return module
        module = below


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether ``torch.compile`` made the module, or a module within it."""
    return any("_orig_mod" in each._modules or each._compiled_call_impl is not None for each in module.modules())


def wrapper_of(module: torch.nn.Module) -> DistributedDataParallel | None:
    """The DistributedDataParallel around the whole model, or None."""
    while True:
        if isinstance(module, DistributedDataParallel):
            return module
        below = module._modules.get("_orig_mod")
        if below is None:
            return None
        module = below


def _owned(model: torch.nn.Module) -> Iterator[tuple[str, list[tuple[str, torch.nn.Parameter]]]]:
    """Modules with their own parameters, in the order of ``named_modules``; a shared parameter is in the first of its
    modules."""
    seen: set[int] = set()
    for name, module in model.named_modules():
        own = []
        for label, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                own.append((label, parameter))
        if own:
            yield name.replace("_orig_mod.", "").removesuffix("_orig_mod").removesuffix("."), own


def outline(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """All parameters of a model; a parameter's index is its place here.

    Raises:
        ProfileError: some of them cannot be timed.
    """
    for module in model.modules():
        if type(module).__name__ in SHARDED or any(base.__name__ in SHARDED for base in type(module).__mro__):
            raise ProfileError(
                "the model is sharded (FSDP), so no rank has whole layers: profile the script with "
                "DistributedDataParallel, or on one rank without a wrapper"
            )
    found = [parameter for _, own in _owned(model) for _, parameter in own]
    for parameter in found:
        if parameter.device.type != "cpu":
            raise ProfileError(
                f"a parameter is on {parameter.device}: operations there run after the calls that start them, so hooks do not "
                "measure their times. Profiles are for models on the CPU; run the script with CUDA_VISIBLE_DEVICES set to nothing"
            )
        if _dtype(parameter) not in ELEMENT_BYTES:
            raise ProfileError(f"a parameter has the dtype {parameter.dtype}; a profile can have {', '.join(ELEMENT_BYTES)}")
    return found


def _dtype(parameter: torch.Tensor) -> str:
    return str(parameter.dtype).removeprefix("torch.")


def layers_of(model: torch.nn.Module, ready: dict[int, float]) -> list[Layer]:
    """The layers of a model; ``ready`` has the times of gradients by the indices of parameters."""
    layers, index = [], 0
    for name, own in _owned(model):
        parameters = []
        for label, each in own:
            moment = ready.get(index) if each.requires_grad else None
            parameters.append(Parameter(label, tuple(each.shape), _dtype(each), each.requires_grad, moment))
            index += 1
        layers.append(Layer(name, parameters))
    return layers


def reported_buckets(wrapper: DistributedDataParallel) -> list[list[int]]:
    """The buckets that DDP has made in the order of arrival, as lists of places among trainable parameters; empty if DDP
    reports none."""
    reading: Any = wrapper
    reported: str = reading._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", "")
    return [[int(word) for word in bucket.split()] for bucket in reported.split(",")] if reported else []


def leave_sums_out(wrapper: DistributedDataParallel) -> None:
    """Let DDP keep each rank's own gradients. It still does all work except the sums, such as buckets and copies.

    For each bucket the ranks sum one number instead, so that they stay in step and wait for the slowest one as in a training.

    Raises:
        ProfileError: the script has its own hook for sums, and DDP allows only one.
    """

    def kept(_: None, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        work = dist.all_reduce(torch.zeros(1), group=wrapper.process_group, async_op=True)
        future: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda _: bucket.buffer())
        return future

    # DDP compares annotations with types, but here they are texts.
    kept.__annotations__.clear()
    try:
        wrapper.register_comm_hook(None, kept)
    except RuntimeError as error:
        raise ProfileError(
            f"DDP's sums cannot be left out, because the script registers a communication hook ({str(error).splitlines()[0]}): "
            "leave --without-sums out, or the script's hook"
        ) from None


def buckets_of(wrapper: DistributedDataParallel, parameters: Sequence[Parameter], reported: Sequence[Sequence[int]]) -> Buckets:
    """DDP's buckets: the ones from :func:`reported_buckets`, or else computed from its settings and these parameters."""
    ddp: Any = wrapper
    cap = int(ddp.bucket_bytes_cap)
    first = FIRST_BYTES if ddp.bucket_bytes_cap_default else cap
    keeps = bool(ddp.find_unused_parameters) and not ddp.static_graph
    found = grouped(parameters, first, cap, keeps)
    if not reported:
        return found
    trainable = [index for index, each in enumerate(parameters) if each.trainable]
    return Buckets(first, cap, found.initial, [[trainable[place] for place in bucket] for bucket in reported])
