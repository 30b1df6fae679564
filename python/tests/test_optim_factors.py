"""Linear layers whose gradients travel as factors train as with DistributedDataParallel."""

from __future__ import annotations

import herringbone
import pytest
import torch
from conftest import Group, free_port
from herringbone.optim import factor_broadcast
from herringbone.optim.factor_choice import LayerSize, explained, uses_factors


def test_factors_are_the_gradient_to_rounding(group: Group) -> None:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    group.start_ranks("optim_factors.py", 2, **place)
    outcomes = group.finish()
    assert [status for status, _ in outcomes] == [0, 0], "".join(group.lines)
    assert all("equal" in output for _, output in outcomes)


@pytest.mark.parametrize("rows, ranks, wanted", [(1, 2, True), (33, 3, True), (34, 3, False), (None, 9, True)])
def test_factors_are_sent_where_they_are_fewer(rows: int | None, ranks: int, wanted: bool) -> None:
    """rows (100 + 100) ranks < 2 x 100 x 100."""
    size = LayerSize("layer", 100, 100, rows)
    assert uses_factors(size, ranks) is wanted
    assert ("factors" in explained([size], ranks, [])) is (wanted and rows is not None)


def test_arguments_that_make_no_sense_are_named() -> None:
    with pytest.raises(TypeError, match="model is a int; pass a torch.nn.Module"):
        factor_broadcast(3)  # type: ignore[arg-type]
    with pytest.raises(herringbone.ArgumentError, match="there is no process group"):
        factor_broadcast(torch.nn.Linear(2, 2))
