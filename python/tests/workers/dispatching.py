"""What sees collectives through torch's dispatcher sees ours as it sees Gloo's; groups beside other backends; two ranks."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import cases
import torch
import torch.distributed as dist
from cases import error_of
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.debug import CommDebugMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from values import rank, size

import herringbone
from herringbone.torch.calls import CALLS

CASES, case = cases.registry()

MIXED = "cpu:herringbone,cuda:gloo"
SECONDS = timedelta(seconds=30)


def mine(length: int = 2) -> torch.Tensor:
    return torch.full((length,), float(rank() + 1))


def everything(group: dist.ProcessGroup | None) -> dict[str, Callable[[], Any]]:
    """A call of every collective, and of messages, on tensors that it makes."""

    def message() -> None:
        if rank() == 0:
            dist.send(mine(), 1, group=group)
        else:
            dist.recv(torch.empty(2), 0, group=group)

    def parts(number: int = 2) -> list[torch.Tensor]:
        return [torch.ones(number) for _ in range(size())]

    on_root = rank() == 0
    return {
        "allreduce": lambda: dist.all_reduce(mine(), group=group),
        "reduce": lambda: dist.reduce(mine(), 0, group=group),
        "broadcast": lambda: dist.broadcast(mine(), 0, group=group),
        "barrier": lambda: dist.barrier(group),
        "allgather": lambda: dist.all_gather(parts(), mine(), group=group),
        "_allgather_base": lambda: dist.all_gather_into_tensor(torch.empty(4), mine(), group=group),
        "gather": lambda: dist.gather(mine(), parts() if on_root else None, 0, group=group),
        "scatter": lambda: dist.scatter(mine(), parts() if on_root else None, 0, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter(mine(), parts(), group=group),
        "_reduce_scatter_base": lambda: dist.reduce_scatter_tensor(mine(), torch.ones(4), group=group),
        "alltoall": lambda: dist.all_to_all(parts(), parts(), group=group),
        "alltoall_base": lambda: dist.all_to_all_single(torch.empty(2), mine(), group=group),
        "message": message,
    }


class Seen(TorchDispatchMode):
    """Notes the operators of c10d that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.names.append(func._schema.name)
        return func(*args, **kwargs or {})


@case
def modes_see_every_call_as_gloos() -> None:
    real = dist.new_group(backend="gloo")
    for name, call in everything(None).items():
        with Seen() as ours:
            call()
        with Seen() as theirs:
            everything(real)[name]()
        assert ours.names == theirs.names != [], (name, ours.names, theirs.names)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    with CommDebugMode() as mode:
        model(torch.ones(2, 4)).sum().backward()
    assert mode.get_total_counts() == 1


@case
def a_traced_collective_is_in_the_graph() -> None:
    def step(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor * 2
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 0)
        return tensor + 1

    for kind in ("real", "fake"):
        graph = make_fx(step, tracing_mode=kind)(mine())
        assert "allreduce_" in graph.code and "broadcast_" in graph.code, graph.code
    with FakeTensorMode():
        tensor = torch.ones(4)
        dist.all_reduce(tensor)
        assert tensor.shape == (4,)
    tensor = (mine() * 1j).conj().imag
    assert tensor.is_neg()
    error_of(herringbone.UnsupportedError, lambda: make_fx(lambda t: dist.all_reduce(t))(tensor), "would not contain")


@case
def negative_views_get_their_results() -> None:
    tensor = (mine() * 1j).conj().imag
    dist.all_reduce(tensor)
    assert tensor.tolist() == [-3.0, -3.0], "through the dispatcher a copy would have got them"


@case
def observers_see_the_operators(folder: str = "trace") -> None:
    path = Path(os.environ["RESULTS"]) / f"{folder}-{rank()}.json"
    observer = torch.profiler.ExecutionTraceObserver().register_callback(str(path))
    observer.start()
    dist.all_reduce(mine())
    dist.barrier()
    observer.stop()
    observer.unregister_callback()
    names = {node["name"] for node in json.loads(path.read_text())["nodes"]}
    path.unlink()
    assert {"c10d::allreduce_", "c10d::barrier"} <= names, names


@case
def versions_count_as_gloos() -> None:
    def versions(group: dist.ProcessGroup | None) -> list[list[bool]]:
        changed = []
        for work in (
            lambda one, two: dist.all_reduce(one, group=group),
            lambda one, two: dist.all_gather([one, two], torch.ones(2), group=group),
            lambda one, two: dist.all_gather(list(one.chunk(2)), torch.ones(1), group=group),
            lambda one, two: dist.all_gather_into_tensor(one, torch.ones(1), group=group),
            lambda one, two: dist.reduce_scatter(one, [torch.ones(2), torch.ones(2)], group=group),
            lambda one, two: dist.reduce_scatter_tensor(one, torch.ones(4), group=group),
            lambda one, two: dist.all_to_all([one, two], [torch.ones(2), torch.ones(2)], group=group),
        ):
            tensors = torch.ones(2), torch.ones(2)
            work(*tensors)
            changed.append([tensor._version > 0 for tensor in tensors])
        return changed

    assert versions(None) == versions(dist.new_group(backend="gloo"))


@case
def hooks_of_a_group_are_called() -> None:
    group = dist.new_group()
    if not hasattr(group, "register_pre_hook"):
        return
    seen: list[str] = []
    group.register_pre_hook(1, lambda args: seen.append(f"before {args.name.name}"))
    group.register_post_hook(2, lambda args: seen.append(f"after {args.name.name}"))
    dist.all_reduce(mine(), group=group)
    assert seen == ["before ALLREDUCE", "after ALLREDUCE"], seen
    group.unregister_pre_hook(1)
    group.unregister_post_hook(2)
    with mock.patch.dict(os.environ, TORCH_DIST_NAN_CHECK="1"):
        checked = dist.new_group()
    error_of(RuntimeError, lambda: dist.all_reduce(torch.tensor([float("nan")]), group=checked), "NaN")


@case
def a_hook_that_calls_gets_its_own_work() -> None:
    group, other = dist.new_group(), dist.new_group()
    if not hasattr(group, "register_post_hook"):
        return
    inner: list[Any] = []
    again = mine()
    group.register_post_hook(1, lambda args: inner.append(dist.all_reduce(again, group=other, async_op=True)))
    tensor = mine()
    work = dist.broadcast(tensor, 0, group=group, async_op=True)
    work.wait(), inner[0].wait()
    assert work.result()[0] is tensor and inner[0].result()[0] is again
    group.unregister_post_hook(1)


@case
def the_flight_recorder_has_our_calls() -> None:
    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)
    if dump is None or not hasattr(c10d, "_maybe_attach_flight_recorder"):
        return
    group = dist.new_group(group_desc="recorded")
    dist.all_reduce(mine(), group=group)
    dist.barrier(group)
    entries = json.loads(dump(backend="herringbone"))["entries"]
    names = [entry["profiling_name"] for entry in entries if "recorded" in str(entry["process_group"])]
    assert [name.partition(":")[2] for name in names] == ["all_reduce", "barrier"], names


@case
def a_group_answers_torch_itself_while_it_records() -> None:
    """torch's recorder asks with its lock held, in which Python could lose the GIL to a thread that waits for the lock."""
    if not hasattr(c10d, "_maybe_attach_flight_recorder"):
        return
    group = dist.new_group(group_desc="asked")
    asked: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.endswith("torch/group.py") and code.co_name.startswith("get"):
            caller = frame.f_back.f_code if frame.f_back else code
            asked.append(f"{code.co_name} from {caller.co_name} of {caller.co_filename}")

    sys.setprofile(note)
    try:
        dist.all_reduce(mine(), group=group)
        dist.barrier(group)
    finally:
        sys.setprofile(None)
    # C++ shows as the Python that has called it.
    assert not [question for question in asked if question.endswith("torch/dispatched.py")], asked
    assert group.group_desc == group.getGroupDesc() == "asked" and group.group_name == group.getGroupName()


@case
def works_of_other_backends_are_theirs() -> None:
    mixed = dist.new_group(backend=MIXED)
    assert type(dist.all_reduce(mine(), group=mixed, async_op=True).wait()) is bool
    real = dist.new_group(backend="gloo")
    work = dist.reduce_scatter_tensor(mine(1), torch.ones(2), group=real, async_op=True)
    assert type(work).__module__ != "herringbone.torch.work"
    work.is_completed()
    work.wait()
    assert work.is_completed() in (True, False)


class Wrapper(torch.Tensor):
    """A tensor that has another one in it, and no memory of its own."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented


def of_every_method(group: Any, tensor: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """A call of every method of a group or backend, all of whose tensors are ``tensor``."""
    each = [tensor] * size()
    rooted, reduced, gathered, scattered = (
        getattr(c10d, f"{kind}Options")() for kind in ("Broadcast", "Reduce", "Gather", "Scatter")
    )
    for options in (rooted, reduced, gathered, scattered):
        options.rootRank = rank()
    everywhere, folded = c10d.AllgatherOptions(), c10d.ReduceScatterOptions()
    return {
        "allreduce": lambda: group.allreduce([tensor], c10d.AllreduceOptions()),
        "allreduce_coalesced": lambda: group.allreduce_coalesced([tensor], c10d.AllreduceCoalescedOptions()),
        "reduce": lambda: group.reduce([tensor], reduced),
        "broadcast": lambda: group.broadcast([tensor], rooted),
        "allgather": lambda: group.allgather([each], [tensor], everywhere),
        "allgather_coalesced": lambda: group.allgather_coalesced([[tensor]] * size(), [tensor], everywhere),
        "all_gather_single": lambda: group.all_gather_single(tensor, tensor, everywhere),
        "all_gather_single_coalesced": lambda: group.all_gather_single_coalesced([tensor], [tensor], everywhere),
        "reduce_scatter": lambda: group.reduce_scatter([tensor], [each], folded),
        "reduce_scatter_single": lambda: group.reduce_scatter_single(tensor, tensor, folded),
        "reduce_scatter_single_coalesced": lambda: group.reduce_scatter_single_coalesced([tensor], [tensor], folded),
        "gather": lambda: group.gather([each], [tensor], gathered),
        "gather_single": lambda: group.gather_single(tensor, tensor, gathered),
        "scatter": lambda: group.scatter([tensor], [each], scattered),
        "alltoall": lambda: group.alltoall(each, each, c10d.AllToAllOptions()),
        "all_to_all_single": lambda: group.all_to_all_single(tensor, tensor, [], [], c10d.AllToAllOptions()),
        "send": lambda: group.send([tensor], 1 - rank(), 0),
        "recv": lambda: group.recv([tensor], 1 - rank(), 0),
        "recv_anysource": lambda: group.recv_anysource([tensor], 0),
    }


@case
def tensors_whose_memory_is_not_their_values_are_refused_by_name() -> None:
    parts, mesh = [torch.ones(2, 3), torch.ones(1, 3)], init_device_mesh("cpu", (size(),))
    strange = [
        (torch.quantize_per_tensor(torch.arange(6.0), 0.5, 1, torch.qint8), "torch.qint8", "dequantize()"),
        (torch.nested.nested_tensor(parts), "nested", "unbind()"),
        (torch.nested.nested_tensor(parts, layout=torch.jagged), "nested", "unbind()"),
        (DTensor.from_local(torch.ones(6), mesh, [Replicate()]), "DTensor", "to_local()"),
        (Wrapper(torch.ones(6)), "Wrapper", "the tensor that it wraps"),
        (torch.eye(3).to_sparse_csr(), "torch.sparse_csr", "to_dense()"),
    ]
    others = {"barrier", "_allgather_base", "allgather_into_tensor_coalesced", "_reduce_scatter_base", "alltoall_base"}
    others |= {"reduce_scatter_tensor_coalesced", "gather_into_tensor"}
    # A backend is called at once by versions of torch whose dispatcher calls none in Python.
    for group in (dist.group.WORLD, dist.group.WORLD._get_backend(torch.device("cpu"))):
        for tensor, *words in strange:
            calls = of_every_method(group, tensor)
            assert set(calls) == set(CALLS) - others
            for name, call in calls.items():
                try:
                    error_of(herringbone.UnsupportedError, call, *words)
                except Exception as error:
                    raise AssertionError(f"{name} of {words[0]} on {type(group).__name__}") from error
    tensor = mine().as_subclass(type("Plain", (torch.Tensor,), {}))
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.full((2,), 3.0)), "a class of the program's with memory is a tensor like others"


@case
def a_group_beside_another_backend_is_whole() -> None:
    mixed = dist.new_group(backend=MIXED, timeout=SECONDS)
    dist.monitored_barrier(mixed, timeout=SECONDS)
    tensor = mine()
    work = dist.all_reduce(tensor, group=mixed, async_op=True)
    work.wait()
    assert work.is_completed() and work.is_success() and work.exception() is None
    assert work.result()[0] is tensor and tensor.tolist() == [3.0, 3.0]
    if rank() == 0:
        dist.send(mine(), 1, group=mixed)
    else:
        assert dist.recv(tensor, group=mixed) == 0 and tensor.tolist() == [1.0, 1.0]
    for name, call in everything(mixed).items():
        with Seen() as seen:
            call()
        assert seen.names, name
    with torch.profiler.profile() as profile:
        dist.all_reduce(mine(), group=mixed)
    assert sum(event.name == "c10d::allreduce_" for event in profile.events()) == 1
    failed = dist.all_reduce(mine(rank() + 1), group=mixed, async_op=True)
    error_of(herringbone.MismatchError, failed.wait)
    assert isinstance(failed.exception(), herringbone.MismatchError) and not failed.is_success()


@case
def a_group_beside_another_backend_is_split() -> None:
    mixed = dist.new_group(backend=MIXED, timeout=SECONDS)
    for ranks in ([[0], [1]], [[0, 1]], [[0]]):
        part = dist.split_group(mixed, ranks)
        own = next((members for members in ranks if rank() in members), None)
        if own is None:
            assert part is dist.GroupMember.NON_GROUP_MEMBER
            continue
        tensor = mine()
        dist.all_reduce(tensor, group=part)
        assert tensor.tolist() == [float(sum(member + 1 for member in own))] * 2
