"""The place where the members of a group meet, and what strangers and members say there."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import pytest

pytest.importorskip("torch")

from torch._C._distributed_c10d import PrefixStore

from herringbone.errors import (
    ArgumentError,
    HerringboneError,
    MismatchError,
    OperationTimeoutError,
    PeerLostError,
    RendezvousError,
)
from herringbone.torch.frames import FRAME_BYTES, pack
from herringbone.torch.handles import Handle, in_order
from herringbone.torch.rendezvous import RendezvousStore, meet
from herringbone.torch.rendezvous_server import ROUNDS, RendezvousServer


@pytest.fixture
def places() -> Iterator[list[RendezvousServer]]:
    places = [RendezvousServer("127.0.0.1") for _ in range(3)]
    yield places
    for place in places:
        place.close()


def handles_of(places: list[RendezvousServer]) -> list[Handle]:
    return [Handle(place.host, place.port, place.secret, rank, 1) for rank, place in enumerate(places)]


def met(*calls: Callable[[], RendezvousStore]) -> list[RendezvousStore | HerringboneError]:
    """What each member gets, all of which come at once."""
    with ThreadPoolExecutor(len(calls)) as pool:
        futures: list[Future[RendezvousStore]] = [pool.submit(call) for call in calls]
    outcomes: list[RendezvousStore | HerringboneError] = []
    for future in futures:
        error = future.exception()
        assert error is None or isinstance(error, HerringboneError), error
        outcomes.append(future.result() if error is None else error)
    return outcomes


def members(number: int, handles: list[Handle], *ranks: int, seconds: float = 10) -> list[Callable[[], RendezvousStore]]:
    return [lambda rank=rank: meet(number, handles, rank, seconds) for rank in ranks]


def stores(outcomes: list[RendezvousStore | HerringboneError]) -> list[RendezvousStore]:
    for outcome in outcomes:
        assert isinstance(outcome, RendezvousStore), outcome
    return [outcome for outcome in outcomes if isinstance(outcome, RendezvousStore)]


def test_the_store_that_they_get(places: list[RendezvousServer]) -> None:
    first, second, third = stores(met(*members(1, handles_of(places), 0, 1, 2)))
    prefixed = PrefixStore("of/a/group", second)
    first.set("of/a/group/key", b"\x00\xff")
    assert third.get("of/a/group/key") == prefixed.get("key") == b"\x00\xff"
    assert [store.add("count", 2) for store in (first, second, third)] == [2, 4, 6]
    assert third.check(["count", "of/a/group/key"]) and not third.check(["count", "other"])
    assert first.compare_set("chosen", "", "one") == b"one" and second.compare_set("chosen", "", "two") == b"one"
    assert first.compare_set("chosen", "one", "two") == b"two" and first.compare_set("nobody's", "one", "two") == b"one"
    assert first.delete_key("count") and not second.delete_key("count")
    waiting = threading.Thread(target=third.wait, args=(["late"], timedelta(seconds=10)))
    waiting.start()
    second.set("late", "here")
    waiting.join(5)
    assert not waiting.is_alive()
    with pytest.raises(OperationTimeoutError, match="no rank has set never"):
        first.wait(["never"], timedelta(seconds=0.1))
    with pytest.raises(ValueError, match="bytes is too long for"):
        first.set("large", bytes(FRAME_BYTES))
    # What a formation has left is there for a while, though the next one has been.
    stores(met(*members(2, handles_of(places), 0, 1, 2)))
    assert first.get("chosen") == b"two"
    for number in range(3, 3 + ROUNDS):
        stores(met(*members(number, handles_of(places), 0, 1, 2)))
    with pytest.raises(PeerLostError):
        first.get("chosen")


def test_strangers_disturb_no_meeting(places: list[RendezvousServer]) -> None:
    handles = handles_of(places)
    said = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00" * 100,
        struct.pack("!I", FRAME_BYTES + 1),
        struct.pack("!I", 10) + b"0123456789",
        struct.pack("!I", 2) + b"[]",
        struct.pack("!I", 200_000) + b"[" * 200_000,
        pack({"do": "come"}),
        pack({"secret": "0" * 32, "do": "come", "round": "1", "rank": 0, "size": 2, "digest": "", "seconds": 0}),
        pack({"secret": "ä", "do": "set", "round": "1", "names": ["herringbone/hub"], "value": "here"}),
        pack({"secret": 7, "do": None}),
    ]
    streams = []
    for place in places:
        for words in said:
            streams.append(socket.create_connection((place.host, place.port)))
            streams[-1].sendall(words)
        # It says nothing, or half of something.
        streams.append(socket.create_connection((place.host, place.port)))
        streams.append(socket.create_connection((place.host, place.port)))
        streams[-1].sendall(said[-1][:-1])
    stores(met(*members(1, handles, 0, 1, 2)))
    for stream in streams:
        stream.close()
    stores(met(*members(2, handles, 0, 1, 2)))


def test_members_that_do_not_fit_together(places: list[RendezvousServer]) -> None:
    handles = handles_of(places)
    for other in (handles[::-1], handles[:2], [*handles[:2], Handle("127.0.0.1", 1, handles[2].secret, 2, 1)]):
        number = id(other)
        outcomes = met(*members(number, handles, 0), *members(number, other, 1))
        kinds = {type(outcome) for outcome in outcomes}
        assert kinds == {MismatchError} or kinds <= {RendezvousError, PeerLostError, MismatchError}, outcomes
    # Whoever comes to a round that is over is told so at once.
    stores(met(*members(5, handles, 0, 1, 2)))
    [error] = met(*members(5, handles, 1))
    assert isinstance(error, RendezvousError) and "has been used" in str(error)
    # Two that would be the same rank.
    outcomes = met(*members(6, handles, 0, 1, 1, seconds=1))
    assert not any(isinstance(outcome, RendezvousStore) for outcome in outcomes)
    assert {outcome.ranks for outcome in outcomes if isinstance(outcome, RendezvousError)} == {(2,), ()}, outcomes


def test_a_place_that_closes_is_noticed(places: list[RendezvousServer]) -> None:
    handles = handles_of(places)
    host = min(range(3), key=lambda rank: handles[rank].secret)
    threading.Timer(0.5, places[host].close).start()
    others = [rank for rank in range(3) if rank != host]
    for outcome in met(*members(1, handles, *others)):
        assert isinstance(outcome, PeerLostError) and outcome.ranks == (host,), outcome
    for outcome in met(*members(2, handles, *others)):
        assert isinstance(outcome, PeerLostError) and outcome.ranks == (host,), outcome


def test_a_set_puts_those_first_that_had_a_group() -> None:
    def handle(rank: int, formations: int, secret: str) -> str:
        return Handle("10.0.0.1", 7, secret, rank, formations).write()

    known = {handle(3, 2, "a"), handle(0, 0, "b"), handle(1, 2, "c"), handle(0, 0, "d")}
    assert [each.secret for each in in_order(known)] == ["c", "a", "b", "d"]
    assert [each.secret for each in in_order(sorted(known))] == [Handle.read(text).secret for text in sorted(known)]
    assert Handle("::1", 7, "s", 0, 0).address == "[::1]:7"
    for wrong in ("", "7", "{}", "null", '{"herringbone": 1}', '{"herringbone": 1, "host": "h"}', None, 7):
        with pytest.raises(ArgumentError, match="not a handle of herringbone"):
            in_order([wrong])
    with pytest.raises(ArgumentError, match="pass a list or a set"):
        in_order("text")
