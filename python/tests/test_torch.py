"""The backend under torchrun, at several sizes, algorithms and transports."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")

from conftest import Group, Run, cases_of, forked, free_port, torchrun

from lab.job import python


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return torchrun("collectives.py", 2, tmp_path_factory.mktemp("two"), forked=False)


@pytest.fixture(scope="module")
def four_ranks_over_tcp(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return forked("collectives.py", 4, tmp_path_factory.mktemp("four"), HERRINGBONE_TRANSPORT="tcp")


@pytest.fixture(scope="module")
def folds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return {
        transport: forked("folds.py", ranks, tmp_path_factory.mktemp(transport), HERRINGBONE_TRANSPORT=transport)
        for transport, ranks in (("shm", 3), ("tcp", 4))
    }


@pytest.fixture(scope="module")
def exchanges(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return torchrun("exchanges.py", 2, tmp_path_factory.mktemp("exchanges"))


@pytest.fixture(scope="module")
def exchanges_over_tcp(tmp_path_factory: pytest.TempPathFactory) -> Run:
    settings = {"HERRINGBONE_TRANSPORT": "tcp", "HERRINGBONE_STAGING_BYTES": "4M"}
    return forked("exchanges.py", 4, tmp_path_factory.mktemp("tcp"), **settings)


@pytest.fixture(scope="module")
def mistakes(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return forked("mistakes.py", 2, tmp_path_factory.mktemp("mistakes"))


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> Run:
    settings = {"HERRINGBONE_STAGING_BYTES": "16M"}
    return forked("endings.py", 2, tmp_path_factory.mktemp("endings"), **settings)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return torchrun("training.py", 2, tmp_path_factory.mktemp("training"))


@pytest.fixture(scope="module")
def training_with_reducers(tmp_path_factory: pytest.TempPathFactory, reducers: str) -> Run:
    folder = tmp_path_factory.mktemp("reducers")
    settings = {"HERRINGBONE_REDUCERS": reducers, "HERRINGBONE_ALGORITHM": "reduction_server"}
    # Has DDP ask the backend whether it allocates the buckets.
    settings["DDP_DISABLE_COMM_MEM"] = "0"
    return forked("training.py", 3, folder, **settings)


@pytest.mark.parametrize("case", cases_of("collectives.py"))
def test_collectives_at_two_ranks(two_ranks: Run, case: str) -> None:
    two_ranks.check(case)


@pytest.mark.parametrize("case", cases_of("collectives.py"))
def test_collectives_at_four_ranks_over_tcp(four_ranks_over_tcp: Run, case: str) -> None:
    four_ranks_over_tcp.check(case)


@pytest.mark.parametrize("case", cases_of("folds.py"))
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_folds(folds: dict[str, Run], transport: str, case: str) -> None:
    folds[transport].check(case)


@pytest.mark.parametrize("case", cases_of("exchanges.py"))
def test_exchanges(exchanges: Run, case: str) -> None:
    exchanges.check(case)


@pytest.mark.parametrize("case", cases_of("exchanges.py"))
def test_exchanges_between_four_over_tcp(exchanges_over_tcp: Run, case: str) -> None:
    exchanges_over_tcp.check(case)


@pytest.mark.parametrize("case", cases_of("mistakes.py"))
def test_mistakes(mistakes: Run, case: str) -> None:
    mistakes.check(case)


@pytest.mark.parametrize("case", cases_of("endings.py"))
def test_endings(endings: Run, case: str) -> None:
    endings.check(case)


def test_the_end_of_a_program_tells_of_the_mismatch_in_its_last_call(endings: Run) -> None:
    assert "MismatchError: herringbone, on rank 0: close: the ranks disagree" in endings.output, endings.output
    assert "ended with" not in endings.output, "the exit status is not what it was"


@pytest.mark.parametrize("case", cases_of("training.py"))
def test_training(training: Run, case: str) -> None:
    training.check(case)


@pytest.mark.parametrize("case", cases_of("training.py"))
def test_training_with_reducers(training_with_reducers: Run, case: str) -> None:
    training_with_reducers.check(case)


def test_a_killed_rank_is_named_by_all_survivors(group: Group, tmp_path: Path) -> None:
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    group.start_ranks("killed.py", 4, str(tmp_path / "moment"), **environment)
    *survivors, (victim, _) = group.finish()
    assert victim == -signal.SIGKILL
    for status, output in survivors:
        assert status == 42, output
        found = re.search(r"after (\S+) s PeerLostError: (.*)", output)
        assert found and "rank 3" in found[2], output
        print(f"told {found[1]} s after the kill")
        assert float(found[1]) < 5


def test_processes_that_torch_spawns(group: Group, tmp_path: Path) -> None:
    group.start(str(Path(__file__).parent / "workers" / "spawned.py"), str(tmp_path / "meeting"), forked=True)
    [(status, output)] = group.finish()
    assert status == 0 and output.count("passed") == 3, output


def test_torchrun_starts_again_what_a_death_has_ended(group: Group, tmp_path: Path) -> None:
    script = str(Path(__file__).parent / "workers" / "restarted.py")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", "--max-restarts=1"]
    group.start(*launcher, script, str(tmp_path / "checkpoint"), forked=True, PYTHON_EXEC=python())
    [(status, output)] = group.finish()
    done = re.findall(r"rank (\d) is done, attempt 1, from step (\d)", output)
    assert status == 0 and sorted(rank for rank, _ in done) == ["0", "1", "2"], output
    assert {step for _, step in done} in ({"3"}, {"4"}), "where the rank died, or the sum was out by then"


@pytest.mark.parametrize("leaver", [0, 2])
@pytest.mark.parametrize("how", ["ends", "destroys the group"])
def test_operations_end_though_a_rank_leaves(group: Group, how: str, leaver: int) -> None:
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    group.start_ranks("leaving.py", 3, how, str(leaver), **environment)
    for rank, (status, output) in enumerate(group.finish()):
        assert status == 0, output
        assert "all there" in output or (how == "ends" and rank == leaver), output
