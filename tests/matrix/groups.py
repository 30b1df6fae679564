"""Features: groups, how jobs are started, and what else of torch.distributed works on a group."""

import inspect
import os
import pathlib
import subprocess
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from checks import (
    SIZE,
    NotInTorch,
    everyones,
    feature,
    folder,
    meeting,
    mine,
    needed,
    raises,
    rank,
    same,
    total,
)

import herringbone

HERE = pathlib.Path(__file__).resolve().parent
CPU = torch.device("cpu")


def adds(group: object = None) -> None:
    """Fail unless a group of both ranks adds."""
    tensor = mine()
    dist.all_reduce(tensor, group=group)
    same(tensor, total())


@feature("new_group: some ranks, a timeout, a description")
def new_group() -> None:
    alone = dist.new_group([1])
    if rank() == 1:
        tensor = mine()
        dist.all_reduce(tensor, group=alone)
        same(tensor, mine())
    both = dist.new_group([0, 1], timeout=timedelta(seconds=40), group_desc="both")
    assert both.group_desc == "both"
    adds(both)
    dist.destroy_process_group(both)


@feature("new_group: use_local_synchronization")
def local_synchronization() -> None:
    adds(dist.new_group([0, 1], use_local_synchronization=True))


@feature("new_group: sort_ranks=False")
def turned() -> None:
    if "sort_ranks" not in inspect.signature(dist.new_group).parameters:
        raise NotInTorch("new_group has no sort_ranks")
    group = dist.new_group([1, 0], sort_ranks=False)
    parts = [torch.zeros(3) for _ in range(SIZE)]
    dist.all_gather(parts, mine(), group=group)
    for part, expected in zip(parts, reversed(everyones())):
        same(part, expected)


@feature("new_group: pg_options")
def options() -> None:
    group = dist.new_group(pg_options=herringbone.Options(transport="tcp"))
    adds(group)
    assert "by TCP (forced)" in group.describe()


@feature("new_subgroups, new_subgroups_by_enumeration")
def subgroups() -> None:
    whole, _ = dist.new_subgroups(group_size=SIZE)
    adds(whole)
    own, groups = dist.new_subgroups_by_enumeration([[0], [1]])
    assert dist.get_world_size(own) == 1 and len(groups) == 2


@feature("split_group")
def split_group() -> None:
    split = needed(dist, "split_group")
    adds(split(split_ranks=[[0, 1]], group_desc="again"))
    alone = split(split_ranks=[[0], [1]])
    assert dist.get_world_size(alone) == 1


@feature("groups: destroy, and begin again", backend=None)
def again() -> None:
    for _ in range(2):
        dist.init_process_group("herringbone", init_method=meeting("again"), rank=_rank(), world_size=SIZE)
        adds()
        dist.destroy_process_group()


def _rank() -> int:
    """This rank, before there is a group."""
    return int(os.environ["RANK"])


@feature("groups: a late rank is named by the timeout")
def late() -> None:
    group = dist.new_group(timeout=timedelta(seconds=0.5))
    if rank() == 0:
        raises(RuntimeError, lambda: dist.barrier(group), "rank 1")
    dist.barrier()


@feature("groups: abort")
def aborted() -> None:
    group = dist.new_group()
    if rank() == 0:
        work = dist.barrier(group, async_op=True)
        group.abort()
        raises(RuntimeError, work.wait)
    dist.barrier()


@feature("cpu:herringbone,cuda:gloo", backend=None)
def two_backends() -> None:
    where = {"init_method": meeting("two"), "rank": _rank(), "world_size": SIZE}
    dist.init_process_group("cpu:herringbone,cuda:gloo", **where)
    adds()
    dist.barrier()
    adds(dist.new_group())
    if type(dist.group.WORLD) is not dist.ProcessGroup:
        leaves_to_gloo()
        raise NotInTorch("Python defines no backend for one device, so Herringbone gets the tensors of both")
    kinds = [type(dist.group.WORLD._get_backend(torch.device(device))).__name__ for device in ("cpu", "cuda")]
    assert kinds == ["BackendHerringbone", "ProcessGroupGloo"], kinds


class OnCuda:
    """Stands for CUDA, whose tensors not every machine has: the CPU's are taken for its."""

    device_type = "cuda"


def leaves_to_gloo() -> None:
    """Fail unless a group of another backend's device refuses its tensors, which this torch gives it."""
    from herringbone.torch.devices import let_stand_in

    let_stand_in(OnCuda())
    raises(herringbone.UnsupportedError, lambda: dist.all_reduce(mine()), "gloo for the tensors of cuda", 'backend="gloo"')
    let_stand_in(None)


@feature("a group of Gloo beside")
def gloo_beside() -> None:
    adds(dist.new_group(backend="gloo"))
    adds()


@feature("device mesh")
def device_mesh() -> None:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (1, SIZE), mesh_dim_names=("outer", "inner"))
    adds(mesh["inner"].get_group())
    assert dist.get_world_size(mesh.get_group("outer")) == 1
    assert mesh.get_coordinate() == [0, rank()] or mesh.get_coordinate() == (0, rank())


@feature("device mesh: flattened")
def flat_mesh() -> None:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (1, SIZE), mesh_dim_names=("outer", "inner"))
    adds(needed(mesh, "_flatten")("all").get_group())


@feature("_set_pg_timeout")
def timeout_of_a_group() -> None:
    from torch.distributed import distributed_c10d as c10d

    needed(c10d, "_set_pg_timeout")(timedelta(seconds=50))
    adds()


@feature("sequence numbers")
def numbers() -> None:
    group = dist.new_group()
    before = group._get_sequence_number_for_group()
    dist.all_reduce(mine(), group=group)
    assert group._get_sequence_number_for_group() == before + 1


@feature("profiler's events")
def events() -> None:
    dist.barrier()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(mine())
    names = [event.name for event in profile.events()]
    assert "herringbone:all_reduce" in names and "c10d::allreduce_" in names, names


@feature("RPC beside")
def rpc_beside() -> None:
    from torch.distributed import rpc

    store = f"file://{folder() / 'rpc'}"
    chosen = rpc.TensorPipeRpcBackendOptions(init_method=store, _transports=["uv"])
    rpc.init_rpc(f"worker{rank()}", rank=rank(), world_size=SIZE, rpc_backend_options=chosen)
    answer = rpc.rpc_async(f"worker{1 - rank()}", torch.add, args=(mine(), 1))
    adds()
    same(answer.wait(), mine() + 1)
    dist.barrier()
    rpc.shutdown()
    adds()


@feature("TORCH_DISTRIBUTED_DEBUG=DETAIL", TORCH_DISTRIBUTED_DEBUG="DETAIL")
def detail() -> None:
    assert dist.get_debug_level() == dist.DebugLevel.DETAIL
    adds()
    adds(dist.new_group())
    parts = [torch.zeros(3) for _ in range(SIZE)]
    dist.all_gather(parts, mine())
    same(parts[1], mine(of=1))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1, bias=False))
    model(mine().view(1, 3)).sum().backward()
    same(model.module.weight.grad, (total() / SIZE).view(1, 3))


@feature("HERRINGBONE_REPLACE=gloo", backend="gloo", HERRINGBONE_REPLACE="gloo", HERRINGBONE_LOG="off")
def replaced() -> None:
    world = dist.group.WORLD
    assert "Herringbone" in type(world).__name__, type(world)
    adds()
    before = world.stats()["operations"]["all_reduce"]
    adds(dist.new_group(backend="gloo"))
    assert world.stats()["operations"]["all_reduce"] != before
    real = dist.new_group(backend="torch-gloo")
    adds(real)
    assert "Gloo" in type(real._get_backend(CPU)).__name__


@feature('get_backend in Gloo\'s place says "gloo"', backend="gloo", HERRINGBONE_REPLACE="gloo", HERRINGBONE_LOG="off")
def name_in_its_place() -> None:
    name = dist.get_backend()
    if name == "herringbone":
        raise NotInTorch('no way to name it: get_backend says "herringbone"')
    assert name == "gloo", name


@feature("tcp://, a store by hand", backend=None)
def stores() -> None:
    port = folder() / "port"
    if _rank() == 0:
        store = dist.TCPStore("127.0.0.1", 0, SIZE, True, wait_for_workers=False)
        port.with_suffix(".new").write_text(str(store.port))
        port.with_suffix(".new").rename(port)
    else:
        while not port.exists():
            time.sleep(0.01)
        store = dist.TCPStore("127.0.0.1", int(port.read_text()), SIZE, False)
    dist.init_process_group("herringbone", store=store, rank=_rank(), world_size=SIZE)
    adds()
    dist.destroy_process_group()
    by_hand = dist.PrefixStore("again", store)
    dist.init_process_group("herringbone", store=by_hand, rank=_rank(), world_size=SIZE)
    adds()
    dist.barrier()


@feature("torch.multiprocessing.spawn", backend=None)
def spawned() -> None:
    _one_job([sys.executable, __file__, "spawn", str(folder() / "spawned")])


@feature("torchrun", backend=None)
def under_torchrun() -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={SIZE}"]
    _one_job([*launcher, __file__, "torchrun"])


def _one_job(command: list[str]) -> None:
    """Rank 0 starts a job of its own and checks that both its ranks end well."""
    if _rank() != 0:
        return
    own = ("RANK", "WORLD_SIZE", "MASTER_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("added") == SIZE, done.stdout + done.stderr[-2000:]


def _spawned(number: int, path: str) -> None:
    _added(init_method=f"file://{path}", rank=number, world_size=SIZE)


def _added(**where: object) -> None:
    dist.init_process_group("herringbone", **where)
    adds()
    print("added", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1] == "spawn":
        torch.multiprocessing.spawn(_spawned, (sys.argv[2],), SIZE)
    else:
        _added()
