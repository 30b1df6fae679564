"""Files that a user names to the Python half are read by the engine's rule."""

from __future__ import annotations

import os
import pathlib

import pytest

from herringbone import _herringbone


def test_files_that_users_name_are_read_only_if_they_are_regular(tmp_path: pathlib.Path) -> None:
    pipe, large, text = tmp_path / "pipe", tmp_path / "large", tmp_path / "text"
    os.mkfifo(pipe)
    with large.open("wb") as file:
        # A hole takes up no disk.
        file.truncate(65 << 20)
    text.write_text("numbers")
    assert _herringbone.read_user_text(text) == "numbers"
    for path, what in [(pipe, "a pipe"), ("/dev/zero", "a device"), (tmp_path, "a folder"), (large, "more than 64 MiB")]:
        with pytest.raises(ValueError, match=what) as caught:
            _herringbone.read_user_text(path)
        assert str(path) in str(caught.value)
    with pytest.raises(FileNotFoundError, match="missing"):
        _herringbone.read_user_text(tmp_path / "missing")
