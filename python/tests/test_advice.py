"""Errors advise what a program can do in its own interface."""

from __future__ import annotations

from typing import get_args

import pytest
from conftest import START_SECONDS, Group, free_port

from herringbone import HerringboneError, PeerLostError
from herringbone._herringbone import advice
from herringbone.advice import ADVICE, Interface, advised, in_words_of

FOREIGN = {
    "numpy": ["init_process_group", "hvd.", "rabit"],
    "torch": ["shrink()", "replace()", "hvd."],
    "horovod": ["shrink()", "replace()", "init_process_group"],
    "kvstore": ["shrink()", "replace()", "init_process_group", "hvd."],
    "rabit": ["shrink()", "replace()", "init_process_group", "hvd."],
    "averaging": ["shrink()", "replace()", "init_process_group", "hvd."],
}
"""Of each interface, what its programs cannot call."""
SAID = {
    "numpy": ["shrink() the group", "make a new one"],
    "torch": ["torchrun --max-restarts", "call destroy_process_group()"],
    "horovod": ["hvd.elastic.run", "use hvd.init()"],
    "kvstore": ["kv.num_dead_node()", "create another store"],
    "rabit": ["was not started again within 2 s", ""],
    "averaging": ["pass it to regroup()", "it is closed; make a new LocalSGD"],
}
"""Of each interface, what its programs are told about a lost rank, and after their own end."""


@pytest.mark.parametrize("interface", [*SAID])
def test_a_lost_rank_and_an_end_are_told_in_the_words_of_the_interface(interface: str, group: Group) -> None:
    if interface in ("torch", "averaging"):
        pytest.importorskip("torch")
    group.start_ranks("lost_and_closed.py", 3, interface, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    *survivors, _ = group.finish(START_SECONDS)
    for status, output in survivors:
        errors = [line for line in output.splitlines() if "Error: " in line]
        assert status == 0 and len(errors) == 2, output
        for line, wanted in zip(errors, SAID[interface]):
            assert wanted in line, output
        for line in errors:
            assert not [word for word in FOREIGN[interface] if word in line], line


def test_each_interface_has_its_own_words_for_each_advice() -> None:
    for interface in get_args(Interface):
        for name, own in advice().items():
            text = f"herringbone, on rank 0: all_reduce: something; {own}."
            assert (
                advised(text, interface) == f"herringbone, on rank 0: all_reduce: something; {getattr(ADVICE[interface], name)}."
            )
            assert not [word for word in FOREIGN[interface] if word in advised(text, interface)]


def test_an_error_keeps_its_type_and_values_in_other_words() -> None:
    with pytest.raises(PeerLostError) as raised, in_words_of("rabit"):
        raise PeerLostError(f"rank 1 is lost: {advice()['lost']}", [1])
    assert raised.value.ranks == (1,) and str(raised.value) == f"rank 1 is lost: {ADVICE['rabit'].lost}"
    with pytest.raises(HerringboneError), in_words_of("kvstore"):
        raise HerringboneError
