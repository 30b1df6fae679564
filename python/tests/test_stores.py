"""What ranks leave in torch's store: others may not read a job's key, and a token that is set is not there."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch")

from conftest import clean_environment

from lab.job import python

MEET = """import sys, torch.distributed as dist
store = dist.FileStore(sys.argv[1], 1)
dist.init_process_group("herringbone", store=store, rank=0, world_size=1)
print(open(sys.argv[1], "rb").read())"""

TOKEN = "a token of these tests"


def meet(file: Path, **settings: str) -> str:
    """What a world of one leaves in its file."""
    outcome = subprocess.run(
        [python(), "-c", MEET, str(file)],
        env=clean_environment(settings),
        capture_output=True,
        text=True,
        timeout=180,
        umask=0o022,
    )
    assert outcome.returncode == 0, outcome.stderr
    assert "herringbone/hub" in outcome.stdout
    return outcome.stdout


def test_a_file_that_holds_a_key_is_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "store"
    file.touch(mode=0o644)
    meet(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_token_that_is_set_is_not_in_the_file(tmp_path: Path) -> None:
    assert TOKEN not in meet(tmp_path / "set", HERRINGBONE_TOKEN=TOKEN)
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    assert TOKEN not in meet(tmp_path / "store", HERRINGBONE_TOKEN_FILE=str(tmp_path / "token"))


def test_a_file_that_an_ending_process_took_with_it_is_its_owners_alone(tmp_path: Path) -> None:
    from torch.distributed import FileStore

    from herringbone.torch.forming import keep_private

    file = tmp_path / "store"
    store = FileStore(str(file), 2)
    file.unlink()
    keep_private(store)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
