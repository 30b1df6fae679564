"""ThresholdSGD: its messages, what it keeps for later, and real peers that are slow, leave early and die."""

from __future__ import annotations

import queue
import random
import re
import signal
import threading
import time
from typing import Any

import herringbone
import numpy as np
import pytest
from conftest import Group, free_port
from herringbone.optim.threshold_code import BLOCK, Change, Shape, decode, encode
from herringbone.optim.threshold_exchange import Exchange
from herringbone.optim.threshold_residual import Residual, apply, threshold_of


def drawn(seed: int) -> tuple[Shape, list[Change]]:
    random = np.random.default_rng(seed)
    lengths = [0, 1, 7, BLOCK, BLOCK + 1, 3 * BLOCK - 5]
    random.shuffle(lengths)
    changes = []
    for length in lengths:
        places = np.flatnonzero(random.random(length) < random.choice([0, 0.01, 1]))
        changes.append(Change(float(np.float32(random.random())), places, random.random(len(places)) < 0.5))
    return Shape(lengths), changes


@pytest.mark.parametrize("seed", range(5))
def test_messages_are_read_as_they_were_written(seed: int) -> None:
    shape, changes = drawn(seed)
    message = encode(shape, changes)
    assert len(message) == shape.head_bytes + 2 * sum(len(change.places) for change in changes) <= shape.most_bytes
    for wrote, read in zip(changes, decode(shape, message), strict=True):
        assert wrote.magnitude == read.magnitude
        assert np.array_equal(wrote.places, read.places) and np.array_equal(wrote.is_negative, read.is_negative)


def test_messages_that_are_damaged_are_refused_or_read_within_bounds() -> None:
    random = np.random.default_rng(1)
    shape, changes = drawn(3)
    message = encode(shape, changes)
    for length in (0, 3, shape.head_bytes - 1, shape.head_bytes, len(message) - 1, len(message) - 2):
        with pytest.raises(herringbone.errors.ProtocolError, match="same model"):
            list(decode(shape, message[:length]))
    refused = 0
    for _ in range(200):
        damaged = bytearray(message)
        damaged[random.integers(len(damaged))] ^= 1 << random.integers(8)
        try:
            for length, change in zip(shape.lengths, decode(shape, bytes(damaged))):
                assert all(0 <= place < length for place in change.places[[0, -1]]) if len(change.places) else True
        except herringbone.errors.ProtocolError:
            refused += 1
    assert refused > 0
    infinite = encode(shape, [Change(float("nan"), change.places, change.is_negative) for change in changes])
    with pytest.raises(herringbone.errors.ProtocolError, match="NaN"):
        list(decode(shape, infinite))


@pytest.mark.parametrize("elements, share", [(1000, 0.01), (10, 0.001), (1 << 20, 0.001), (5, 1.0)])
def test_a_threshold_follows_the_share(elements: int, share: float) -> None:
    magnitudes = np.abs(np.random.default_rng(2).standard_normal(elements)).astype(np.float32)
    found = int((magnitudes >= threshold_of(magnitudes, share)).sum())
    wanted = max(1, share * elements)
    assert 0.7 * wanted <= found <= 1.4 * wanted


def test_nothing_of_an_update_is_lost() -> None:
    """What was sent and what is left are all updates, and equal magnitudes are not all sent at once."""
    random = np.random.default_rng(3)
    residual, sent, total = Residual(500), np.zeros(500, np.float32), np.zeros(500)
    for step in range(50):
        gradient = random.standard_normal(500).astype(np.float32) if step else np.ones(500, np.float32)
        residual.add(gradient, 0.1, 0.0)
        total -= np.float32(0.1) * gradient
        change = residual.take(0.02, None)
        assert 10 <= len(change.places) <= 20
        apply(sent, change, 1.0)
    assert np.allclose(sent + residual.left, total, atol=1e-5)
    assert np.abs(residual.left).max() < 3, "elements do not wait for ever"


def test_velocity_is_summed_and_begins_anew_where_something_is_sent() -> None:
    residual = Residual(3)
    residual.add(np.array([1, 0, -4], np.float32), 1.0, 0.5)
    residual.add(np.array([1, 2, 0], np.float32), 1.0, 0.5)
    assert residual.velocity.tolist() == [1.5, 2, -2] and residual.left.tolist() == [-2.5, -2, 6]
    change = residual.take(1.0, 2.25, masks=True)
    assert change.places.tolist() == [0, 2] and change.is_negative.tolist() == [True, False] and change.magnitude == 2.25
    assert residual.left.tolist() == [-0.25, -2, 3.75] and residual.velocity.tolist() == [0, 2, 0]
    residual.take(1.0, 2.25)
    assert residual.left.tolist() == [-0.25, -2, 1.5] and residual.velocity.tolist() == [0, 2, 0], "and stays without masks"


class Wires:
    """Messages of threads, in place of a group."""

    def __init__(self, size: int) -> None:
        self.queues: dict[Any, queue.Queue[bytes]] = {}
        self.size, self.lock = size, threading.Lock()

    def between(self, *key: int) -> queue.Queue[bytes]:
        with self.lock:
            return self.queues.setdefault(key, queue.Queue())


class End:
    """One thread's."""

    def __init__(self, wires: Wires, rank: int) -> None:
        self.wires, self.rank, self.size = wires, rank, wires.size

    def send(self, array: Any, to: int, tag: int) -> Any:
        self.wires.between(self.rank, to, tag).put(array.tobytes())
        return Sent()

    def receive(self, array: Any, source: int, tag: int) -> Any:
        return Received(array, self.wires.between(source, self.rank, tag))

    def broadcast(self, array: Any, root: int) -> None:
        raise NotImplementedError

    def average(self, array: Any) -> None:
        raise NotImplementedError


class Sent:
    def wait(self) -> None:
        pass

    def done(self) -> bool:
        return True


class Received(Sent):
    def __init__(self, array: Any, wire: queue.Queue[bytes]) -> None:
        self.array, self.wire = array, wire

    def wait(self) -> None:
        self.array[:] = np.frombuffer(self.wire.get(timeout=30), self.array.dtype)

    def done(self) -> bool:
        return not self.wire.empty()


@pytest.mark.parametrize("staleness", [0, 2])
def test_updates_come_once_in_order_and_not_too_late(staleness: int) -> None:
    wires, steps = Wires(3), [25, 40, 33]
    heard: list[list[tuple[int, int]]] = [[] for _ in range(3)]
    wrong: list[str] = []

    def work(rank: int) -> None:
        drawing = random.Random(rank)
        exchange = Exchange(End(wires, rank), staleness, 100)
        for step in range(steps[rank]):
            time.sleep(drawing.random() * 0.002 * (1 + rank))
            for update in exchange.step(bytes([rank, step])):
                heard[rank].append((update[0], update[1]))
            for other in range(3):
                last = max((at for source, at in heard[rank] if source == other), default=-1)
                if last < min(step - staleness, steps[other] - 1):
                    wrong.append(f"rank {rank} made step {step} with rank {other} at {last}")
        heard[rank].extend((update[0], update[1]) for update in exchange.finish())

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    for rank in range(3):
        for other in range(3):
            assert [at for source, at in heard[rank] if source == other] == list(range(steps[other]))
    if staleness == 0:
        assert heard[0] == heard[1] == heard[2], "ranks that end early apply the others' updates in the same order"


def test_a_length_that_no_update_has_is_refused() -> None:
    for length in (0, -3, 101, 1 << 60):
        wires = Wires(2)
        wires.between(1, 0, -7001).put(np.array([length]).tobytes())
        with pytest.raises(herringbone.errors.ProtocolError, match=f"rank 1 announces an update of {length} bytes"):
            list(Exchange(End(wires, 0), 0, 100).step(b"1"))


def test_a_peer_that_has_left_is_missed_where_a_step_of_it_is_needed() -> None:
    for staleness in (0, 2):
        wires = Wires(2)
        wires.between(1, 0, -7001).put(np.array([-2]).tobytes())
        exchange = Exchange(End(wires, 0), staleness, 100)
        for _ in range(staleness):
            assert list(exchange.step(b"1")) == [b"1"]
        with pytest.raises(
            herringbone.PeerLostError, match="rank 1 has left the training of a ThresholdSGD without finish"
        ) as error:
            list(exchange.step(b"1"))
        assert list(error.value.ranks) == [1]
        with pytest.raises(herringbone.PeerLostError):
            list(exchange.finish())


def place() -> dict[str, str]:
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}


def digests(group: Group, case: str) -> list[str]:
    return re.findall(rf"{case} (\w+)", "".join(group.lines))


@pytest.mark.parametrize("work", ["ours", pytest.param("torchs", marks=pytest.mark.full)])
def test_peers_train_in_step_and_apart(group: Group, work: str) -> None:
    group.start_ranks("optim_threshold.py", 3, work, **place())
    statuses = [status for status, _ in group.finish()]
    assert statuses == [0, 0, 0], "".join(group.lines)
    assert "leaving before" not in "".join(group.lines), "a group waits at its end for messages that nobody takes"
    for case in ("lockstep", "apart", "beside40", "beside30", "left0", "left2"):
        found = digests(group, case)
        assert len(found) == 3 and len(set(found)) == 1, found


def test_nobody_waits_for_a_peer_that_makes_no_step(group: Group) -> None:
    group.start_ranks("optim_threshold.py", 2, "early", HERRINGBONE_TIMEOUT_S="20", **place())
    statuses = [status for status, _ in group.finish()]
    assert statuses == [0, 0], "".join(group.lines)
    for case in ("none0", "none2"):
        found = digests(group, case)
        assert len(found) == 2 and len(set(found)) == 1, found


@pytest.mark.full
def test_the_others_go_on_without_a_peer_that_is_killed(group: Group) -> None:
    group.start_ranks("optim_threshold.py", 3, "killed", **place())
    statuses = [status for status, _ in group.finish()]
    assert statuses == [0, -signal.SIGKILL, 0], "".join(group.lines)
    found = digests(group, "killed")
    assert len(found) == 2 and len(set(found)) == 1, found


@pytest.mark.full
def test_digits_are_read_as_well_with_a_hundredth_of_the_bytes(group: Group) -> None:
    group.start_ranks("optim_threshold.py", 4, "digits", HERRINGBONE_TRANSPORT="tcp", **place())
    statuses = [status for status, _ in group.finish()]
    text = "".join(group.lines)
    assert statuses == [0] * 4, text
    found = re.findall(r"(\w+) accuracy ([\d.]+) bytes ([\d.]+)", text)
    dense = next(float(accuracy) for kind, accuracy, _ in found if kind == "dense")
    # How far workers are apart, and so what it costs, is the machine's: 0 to 3 points were seen.
    for wanted, less in (("lockstep", 0.01), ("apart", 0.05)):
        mine = [(float(accuracy), float(share)) for kind, accuracy, share in found if kind == wanted]
        assert mine[0][0] > dense - less, text
        assert sum(share for _, share in mine) / len(mine) < 0.01, text
