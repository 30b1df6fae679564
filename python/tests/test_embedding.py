"""An embedding on servers trains as torch's own does."""

from __future__ import annotations

from collections.abc import Iterator

import herringbone
import pytest
import torch
from herringbone.embedding import TableEmbedding
from test_table_servers import Servers

KEYS, WIDTH, STEPS = 500, 8, 20


@pytest.fixture
def servers() -> Iterator[herringbone.ParameterServer]:
    group = Servers(2, 1)
    with group.connect() as connected:
        yield connected
    group.close()


def test_it_trains_as_an_embedding_of_torch_does(servers: herringbone.ParameterServer) -> None:
    """Matrix factorisation: users are on servers, things are here."""
    torch.manual_seed(3)
    table = servers.table(
        "users", rows=KEYS, width=WIDTH, sparse=True, initializer="normal", seed=4, deviation=0.5, optimizer="sgd",
        numbers={"learning_rate": 0.01, "momentum": 0.5}, consistency="sync",
    )  # fmt: skip
    remote, local = TableEmbedding(table, padding_idx=7), torch.nn.Embedding(KEYS, WIDTH, padding_idx=7)
    with torch.no_grad():
        local.weight.copy_(table.pull(torch.arange(KEYS)))
        local.weight[7] = 0  # as in a module that is new
    things = [torch.nn.Embedding(KEYS, WIDTH) for _ in range(2)]
    things[1].load_state_dict(things[0].state_dict())
    optimizers = [torch.optim.SGD(things[0].parameters(), 0.01), torch.optim.SGD(things[1].parameters(), 0.01)]
    local_optimizer = torch.optim.SGD(local.parameters(), 0.01, momentum=0.5)
    wanted = torch.randn(KEYS, 2) @ torch.randn(2, KEYS)
    losses: list[list[float]] = [[], []]
    # A row of the table that has no gradient is not stepped, so each batch has all of them.
    for _ in range(STEPS):
        rows, columns = torch.randperm(KEYS).repeat(2), torch.randint(KEYS, (2 * KEYS,))
        for side, users in enumerate([remote, local]):
            optimizers[side].zero_grad()
            local_optimizer.zero_grad()
            guess = (users(rows) * things[side](columns)).sum(1)
            loss = torch.nn.functional.mse_loss(guess, wanted[rows, columns], reduction="sum")
            loss.backward()
            optimizers[side].step()
            if side == 0:
                remote.push()
            else:
                local_optimizer.step()
            losses[side].append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0][-1] < losses[0][0]
    assert torch.allclose(remote.eval()(torch.arange(KEYS)), local.weight, atol=1e-5)
    assert table.pull([7]).any(), "what the initializer made, which nobody has seen or changed"
    assert table.step == STEPS


def test_a_step_without_a_batch_and_words_that_do_not_count(servers: herringbone.ParameterServer) -> None:
    table = servers.table("words", rows=10, width=2, optimizer="sgd")
    words = TableEmbedding(table)
    words.push()
    with torch.no_grad():
        assert words(torch.tensor([[1, 2], [2, 9]])).shape == (2, 2, 2)
    words.eval()
    assert not words(torch.tensor([1])).requires_grad
    words.push()
    assert table.step == 2 and repr(words) == "TableEmbedding('words', 10, 2)"
    assert list(words.parameters()) == []
    with pytest.raises(herringbone.TableError, match="keys from 3 to 10"):
        words(torch.tensor([10, 3]))


def test_padding_is_zeros_and_gets_no_gradients(servers: herringbone.ParameterServer) -> None:
    table = servers.table("padded", rows=10, width=2, initializer="normal", optimizer="sgd", consistency="sync")
    before = table.pull_range(0, 10)
    words = TableEmbedding(table, padding_idx=-1)
    assert words.padding_idx == 9 and "padding_idx=9" in repr(words)
    rows = words(torch.tensor([[9, 3], [3, 9]]))
    assert not rows[0, 0].any() and not rows[1, 1].any() and rows[0, 1].tolist() == before[3].tolist()
    rows.sum().backward()
    words.push()
    changed = (table.pull_range(0, 10) != before).any(axis=1)
    assert changed.nonzero()[0].tolist() == [3]
    only = words(torch.full((4,), 9))
    assert not only.any()
    only.sum().backward()
    words.push()
    assert table.step == 2


def test_what_cannot_be_an_embedding_is_refused(servers: herringbone.ParameterServer) -> None:
    table = servers.table("refused", rows=10, optimizer="sgd")
    for index in (10, 99, -11):
        with pytest.raises(herringbone.ArgumentError, match=f"padding_idx is {index}; the table has 10 rows"):
            TableEmbedding(table, padding_idx=index)
    with pytest.raises(TypeError, match="padding_idx is a float"):
        TableEmbedding(table, padding_idx=1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="table is a int; pass what ParameterServer.table"):
        TableEmbedding(3)  # type: ignore[arg-type]
    for optimizer in ("add", "Assign"):
        ascending = servers.table(optimizer, rows=10, optimizer=optimizer)
        with pytest.raises(herringbone.ArgumentError, match="takes values, not gradients"):
            TableEmbedding(ascending)
