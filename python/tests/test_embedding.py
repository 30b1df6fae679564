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
    assert torch.allclose(table.pull(torch.arange(KEYS)), local.weight, atol=1e-5)
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
    assert table.step == 2 and repr(words) == "TableEmbedding('words', 2)"
    assert list(words.parameters()) == []
    with pytest.raises(herringbone.TableError, match="keys from 3 to 10"):
        words(torch.tensor([10, 3]))
    with pytest.raises(herringbone.ArgumentError, match="padding_idx is -1"):
        TableEmbedding(table, padding_idx=-1)
