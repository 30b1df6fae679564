"""The samples and random numbers of shards, for any number of workers, and the loader of them."""

from __future__ import annotations

import hashlib
import multiprocessing
import random
from collections.abc import Iterator
from typing import Any

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from torch.utils.data import Dataset, IterableDataset, default_collate

import herringbone
from herringbone.shards_data import BATCH as OF_BATCH
from herringbone.shards_data import ORDER, SAMPLE, SHARD, Epochs, order, seed_of
from herringbone.torch.shards_loading import ShardLoader

SHARDS, BATCH = 4, 2
LENGTHS = {"drop": 22, "weigh": 22, "weigh, with shards left out": 19}


def epochs_of(case: str) -> Epochs:
    """Three steps an epoch under "weigh", the last with 6 or 3 samples, and two under "drop"."""
    return Epochs(LENGTHS[case], SHARDS, BATCH, seed=7, rule=case.split(",")[0])


def runs(workers: int) -> list[range]:
    """Shards of each worker: even runs, and workers without shards at the end."""
    ends = [SHARDS * min(at, SHARDS) // min(workers, SHARDS) for at in range(workers + 1)]
    return [range(first, min(end, SHARDS)) for first, end in zip(ends, [min(end, SHARDS) for end in ends[1:]])]


def calls(epochs: Epochs, chosen: random.Random, counts: tuple[int, ...]) -> Iterator[tuple[int, int, range]]:
    """The steps of three epochs, with each worker and its shards; their number changes within each epoch, and at its end."""
    workers = counts[0]
    for step in range(3 * epochs.steps):
        if step and chosen.random() < 0.7:
            workers = chosen.choice([other for other in counts if other != workers])
        for worker, mine in enumerate(runs(workers)):
            yield step, worker, mine


def check_samples(epochs: Epochs, seen: dict[int, list[int]]) -> None:
    """Each epoch has had every sample once, under "drop" all but the end of its order."""
    assert len(seen) == 3
    for epoch, samples in seen.items():
        tail = order(epochs.seed, epoch, epochs.samples)[epochs.steps * SHARDS * BATCH :] if epochs.rule == "drop" else []
        assert sorted([*samples, *tail]) == [*range(epochs.samples)]
        assert epochs.rule == "drop" or len(tail) == 0


class Noisy(Dataset[Any]):
    """Samples that draw from every generator, and note who has loaded them."""

    def __init__(self, length: int, fails_at: int = -1) -> None:
        self.length, self.fails_at = length, fails_at

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.fails_at:
            raise KeyError(f"sample {index}")
        assert type(index) is int and torch.get_num_threads() == 1
        noise = [torch.rand(()).item(), np.random.rand(), random.random()]
        assert len(set(noise)) == 3, "no generator has the numbers of another"
        normal = torch.normal(torch.zeros(3, dtype=torch.float64))
        return {"index": index, "noise": torch.tensor(noise, dtype=torch.float64), "normal": normal + np.random.normal()}


def collate(samples: list[Any]) -> dict[str, Any]:
    """Puts samples in a random order, beside a number that only the batch has."""
    random.shuffle(samples)
    return {**default_collate(samples), "mix": torch.rand(2), "of": np.random.rand()}


def digest(batch: dict[str, Any]) -> str:
    parts = [np.asarray(batch[name]).tobytes() for name in ("index", "noise", "normal", "mix", "of")]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def generators() -> tuple[bytes, str, object]:
    state = np.random.get_state(legacy=False)
    return torch.default_generator.get_state().numpy().tobytes(), repr(state), random.getstate()


def test_seeds_and_orders_stay_the_same_in_all_versions() -> None:
    # A program with its own BLAKE2b, Philox4x64-10 and sort has computed these.
    assert seed_of(0) == 0x9E33977871DB3EDB
    assert seed_of(1, 2, 3) == 0x71FD590228B6DB29
    assert seed_of(-1, 1 << 100) == 0x94265AF0A0815E4E
    assert seed_of(*range(20)) == 0x497A2B856F1ABC7E
    assert (ORDER, SAMPLE, OF_BATCH, SHARD) == (0, 1, 2, 3)
    assert order(7, 0, 10).tolist() == [9, 8, 0, 3, 4, 2, 5, 7, 6, 1]
    large = order(7, 3, 10007)
    assert large.dtype == np.int64
    pinned = "03410b3ec15d6302e59361236afacb8a593cb5fa1e876aed8e1601744f855038"
    assert hashlib.sha256(large.astype("<i8").tobytes()).hexdigest() == pinned
    assert Epochs(10007, 1, 10007, seed=7).indices(3, 0).tolist() == large.tolist()


def test_seeds_of_other_places_differ() -> None:
    paths = [(), (0,), (0, 0), (0, 0, 0), (1,), (0, 1), (1, 0), (256,), (-1,), (1 << 64,), (np.int64(2),)]
    assert len({seed_of(5, *path) for path in paths}) == len(paths)
    assert seed_of(5, np.int64(2)) == seed_of(5, 2)
    with pytest.raises(herringbone.ArgumentError, match="beyond 128 bits"):
        seed_of(1, 1 << 127)
    with pytest.raises(TypeError):
        seed_of(1, 2.0)


def test_orders_are_permutations_of_their_own() -> None:
    orders = [order(seed, epoch, 50).tolist() for seed in range(3) for epoch in range(3)]
    assert all(sorted(one) == [*range(50)] for one in orders)
    assert len({*map(tuple, orders)}) == 9


def test_every_sample_comes_once_in_an_epoch_whoever_carries_shards() -> None:
    for seed in range(60):
        chosen = random.Random(seed)
        rule = chosen.choice(["drop", "weigh"])
        samples = chosen.randrange(8 if rule == "drop" else 1, 60)
        epochs = Epochs(samples, SHARDS, BATCH, 7, rule, chosen.random() < 0.8)
        seen: dict[int, list[int]] = {}
        for step, _, mine in calls(epochs, chosen, (1, 2, 3, 4, 6)):
            fresh = Epochs(samples, SHARDS, BATCH, 7, rule, epochs.shuffle)  # a worker that has just started
            for shard in mine:
                indices = fresh.indices(step, shard)
                assert indices.tolist() == epochs.indices(step, shard).tolist()
                assert indices.dtype == np.int64 and len(indices) == epochs.count(step, shard)
                seen.setdefault(epochs.epoch_of(step), []).extend(indices.tolist())
        if epochs.shuffle:
            check_samples(epochs, seen)
        else:
            kept = samples if rule == "weigh" else epochs.steps * 8
            assert all(sorted(one) == [*range(kept)] for one in seen.values())


def test_the_last_step_weighs_by_samples() -> None:
    for samples in range(1, 40):
        epochs = Epochs(samples, SHARDS, BATCH, rule="weigh")
        values = np.random.default_rng(samples).random(samples)
        assert epochs.steps == -(-samples // 8)
        for step in range(epochs.steps):
            dealt = [epochs.indices(step, shard) for shard in range(SHARDS)]
            sizes = [len(indices) for indices in dealt]
            assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1
            weights = [epochs.weight(step, shard) for shard in range(SHARDS)]
            assert weights == [1.0] * SHARDS or (step == epochs.steps - 1 and sum(sizes) < 8)
            means = [weight * values[indices].mean() for weight, indices in zip(weights, dealt) if len(indices)]
            assert sum(means) / SHARDS == pytest.approx(values[np.concatenate(dealt)].mean())
            assert all((weight == 0) == (size == 0) for weight, size in zip(weights, sizes))


def test_an_order_is_made_once_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr("herringbone.shards_data.order", lambda *asked: made.append(asked) or order(*asked))
    epochs = Epochs(40, SHARDS, BATCH)
    for step in range(15):
        for ahead in (0, 3):  # a loader that prefetches, and its program
            epochs.indices(step + ahead, 0)
    assert made == [(0, 0, 40), (0, 1, 40), (0, 2, 40), (0, 3, 40)]
    epochs.indices(0, 0)[:] = 0
    assert epochs.indices(0, 0).any(), "the caller's array is its own"


def test_epochs_that_cannot_be_are_errors() -> None:
    wrong = [
        ({"samples": 0}, "the data set has no samples"),
        ({"shards": 0}, "shards is 0; pass 1 or more"),
        ({"batch": 0}, "batch is 0; pass 1 or more"),
        ({"rule": "pad"}, "no rule 'pad'; pass one of these: 'drop' leaves .*; 'weigh' makes one"),
        ({"samples": 7}, '7 samples, and one step of 4 shards takes 8.*pass rule="weigh"'),
        ({"seed": 1 << 127}, "beyond 128 bits"),
    ]
    for fields, text in wrong:
        with pytest.raises(herringbone.ArgumentError, match=text) as caught:
            Epochs(**{"samples": 20, "shards": SHARDS, "batch": BATCH, **fields})
        assert isinstance(caught.value, ValueError)
    with pytest.raises(TypeError, match="batch is a float, not a whole number"):
        Epochs(20, SHARDS, 2.5)
    epochs = Epochs(20, SHARDS, BATCH)
    for step, shard in ((-1, 0), (0, -1), (0, SHARDS)):
        with pytest.raises(herringbone.ArgumentError, match="count from 0"):
            epochs.indices(step, shard)
        with pytest.raises(herringbone.ArgumentError, match="count from 0"):
            epochs.weight(step, shard)


def test_a_checkpoint_of_other_samples_is_refused_with_both_values() -> None:
    loader = ShardLoader(Noisy(22), epochs_of("weigh"))
    record = loader.record()
    assert record == {"samples": 22, "batch": 2, "rule": "weigh", "shuffle": True}
    loader.check(record)
    for name, other in (("samples", 23), ("batch", 4), ("rule", "drop"), ("shuffle", False)):
        with pytest.raises(herringbone.ArgumentError, match=f"{name}={other!r}, and this training has {name}={record[name]!r}"):
            loader.check({**record, name: other})
        with pytest.raises(herringbone.ArgumentError, match=f"has no {name}"):
            loader.check({key: value for key, value in record.items() if key != name})
    assert Epochs(22, SHARDS, BATCH, shuffle=False).record() == {"samples": 22, "batch": 2, "rule": "drop", "shuffle": False}


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, dict[tuple[int, int], str]]:
    """The digests of all batches of three epochs, in one process that carries all shards."""
    found = {}
    for case, length in LENGTHS.items():
        epochs = epochs_of(case)
        loader = ShardLoader(Noisy(length), epochs, collate_fn=collate)
        places = [(step, shard) for step in range(3 * epochs.steps) for shard in range(SHARDS)]
        full = [place for place in places if not loader.is_empty(*place)]
        found[case] = {place: digest(loader.batch(*place, range(SHARDS))) for place in full}
        assert len({*found[case].values()}) == len(full)
    return found


@pytest.mark.parametrize(
    ("case", "processes"), [*((case, 0) for case in LENGTHS), ("drop", 2), ("weigh, with shards left out", 2)]
)
def test_batches_are_the_same_for_any_number_of_workers(
    undisturbed: dict[str, dict[tuple[int, int], str]], case: str, processes: int
) -> None:
    epochs, seen, found = epochs_of(case), {}, {}
    loaders = [ShardLoader(Noisy(LENGTHS[case]), epochs, processes, collate) for _ in range(6)]
    assert len(loaders[0]) == epochs.steps == (2 if case == "drop" else 3)
    torch.rand(1), np.random.normal(), random.gauss(0, 1)  # each generator is in the middle of something
    before = generators()
    for step, worker, mine in calls(epochs, random.Random(5), (2, 6, 1, 3) if processes == 0 else (2, 1)):
        for shard in mine:
            assert loaders[worker].weight(step, shard) == epochs.weight(step, shard)
            if not loaders[worker].is_empty(step, shard):
                batch = loaders[worker].batch(step, shard, mine)
                found[step, shard] = digest(batch)
                seen.setdefault(epochs.epoch_of(step), []).extend(batch["index"].tolist())
    for loader in loaders:
        loader.close()
    assert generators() == before
    assert found == undisturbed[case]
    check_samples(epochs, seen)
    assert not multiprocessing.active_children()


def test_processes_live_from_epoch_to_epoch_and_end_when_another_batch_is_asked_for(
    undisturbed: dict[str, dict[tuple[int, int], str]],
) -> None:
    expected = undisturbed["weigh"]
    loader = ShardLoader(Noisy(22), epochs_of("weigh"), 1, collate, prefetch_factor=4)

    def take(step: int, shard: int, mine: range) -> set[int]:
        assert digest(loader.batch(step, shard, mine)) == expected[step, shard]
        return {child.pid for child in multiprocessing.active_children()}

    first = [take(step, shard, range(2)) for step in range(9) for shard in range(2)]
    assert all(pids == first[0] for pids in first) and len(first[0]) == 1
    repeated = take(8, 0, range(2))
    assert repeated.isdisjoint(first[0]) and len(repeated) == 1
    changed = take(8, 1, range(1, 2))
    assert changed.isdisjoint(repeated) and len(changed) == 1
    loader.close()
    expected = undisturbed["weigh, with shards left out"]
    loader = ShardLoader(Noisy(19), epochs_of("weigh, with shards left out"), 1, collate)
    places = [(step, shard) for step in range(1, 5) for shard in (2, 3) if not loader.is_empty(step, shard)]
    assert len({*[pid for place in places for pid in take(*place, range(2, 4))]}) == 1 and len(places) == 7
    loader.close()
    loader.close()
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("processes", [0, 1])
def test_an_error_of_a_sample_reaches_the_caller_and_the_loader_stays_usable(processes: int) -> None:
    epochs = Epochs(16, SHARDS, BATCH, shuffle=False)
    loader = ShardLoader(Noisy(16, fails_at=11), epochs, processes)
    before = generators()
    # Sample 11 is prefetched from the first step on, and fails in the second one.
    assert [loader.batch(0, shard, range(SHARDS))["index"].tolist() for shard in range(SHARDS)] == [
        [0, 1],
        [2, 3],
        [4, 5],
        [6, 7],
    ]
    assert loader.batch(1, 0, range(SHARDS))["index"].tolist() == [8, 9]
    for _ in range(2):
        with pytest.raises(KeyError, match="sample 11"):
            loader.batch(1, 1, range(SHARDS))
        assert not multiprocessing.active_children()
    assert loader.batch(1, 2, range(SHARDS))["index"].tolist() == [12, 13]
    loader.close()
    assert generators() == before and not multiprocessing.active_children()


def test_batches_that_are_not_there_are_errors() -> None:
    loader = ShardLoader(Noisy(19), epochs_of("weigh, with shards left out"))
    with pytest.raises(herringbone.ArgumentError, match=r"shard 3 is not among this worker's, which are \[0, 1\]"):
        loader.batch(0, 3, range(2))
    with pytest.raises(herringbone.ArgumentError, match=r"shard 3 has no samples in step 2; leave it out if is_empty\(\)"):
        loader.batch(2, 3, range(SHARDS))


class Seeds(Noisy):
    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, torch.initial_seed()


def test_a_sample_is_seeded_by_its_epoch_and_index_and_a_batch_by_its_step_and_shard() -> None:
    epochs = epochs_of("weigh")
    loader = ShardLoader(Seeds(22), epochs, collate_fn=lambda samples: (samples, torch.initial_seed()))
    for step, shard in ((0, 0), (2, 3), (3, 1), (8, 2)):
        samples, seed = loader.batch(step, shard, range(SHARDS))
        assert [index for index, _ in samples] == epochs.indices(step, shard).tolist()
        assert samples == [(index, seed_of(7, SAMPLE, step // 3, index)) for index, _ in samples]
        assert seed == seed_of(7, OF_BATCH, step, shard)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class Unmeasured:
    def __getitem__(self, index: int) -> int:
        return index


def test_what_would_break_the_promise_is_refused_by_name() -> None:
    options = ("shuffle", "sampler", "batch_sampler", "batch_size", "drop_last", "generator", "persistent_workers", "in_order")
    for option in options:
        with pytest.raises(herringbone.ArgumentError, match=f"{option} is not an option here: .*(pass|leave)"):
            ShardLoader(Noisy(22), epochs_of("weigh"), **{option: None})
    with pytest.raises(TypeError, match="no option 'workers'"):
        ShardLoader(Noisy(22), epochs_of("weigh"), workers=2)
    with pytest.raises(herringbone.UnsupportedError, match="Stream is an IterableDataset.*pass a data set with __getitem__"):
        ShardLoader(Stream(), epochs_of("weigh"))
    with pytest.raises(TypeError, match="a Unmeasured has no __getitem__ or no __len__"):
        ShardLoader(Unmeasured(), epochs_of("weigh"))
    with pytest.raises(herringbone.ArgumentError, match="Noisy has 23 samples, but the epochs have 22"):
        ShardLoader(Noisy(23), epochs_of("weigh"))


def test_torch_has_one_thread_while_a_sample_is_loaded_and_the_programs_afterwards() -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        loader = ShardLoader(Noisy(22, fails_at=order(7, 0, 22)[2]), epochs_of("weigh"))
        loader.batch(0, 0, range(SHARDS))  # asserts that there is one
        with pytest.raises(KeyError):
            loader.batch(0, 1, range(SHARDS))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)


def test_samples_are_fetched_one_by_one_even_if_a_data_set_fetches_batches() -> None:
    class Batched(Noisy):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            raise AssertionError("not called")

    epochs = epochs_of("weigh")
    ours, plain = (ShardLoader(kind(22), epochs, collate_fn=collate) for kind in (Batched, Noisy))
    assert digest(ours.batch(4, 1, range(SHARDS))) == digest(plain.batch(4, 1, range(SHARDS)))
