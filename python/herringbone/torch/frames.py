"""The messages between members of a group that meet: JSON objects, each after its length."""

from __future__ import annotations

import json
import os
import socket
import struct
import weakref
from typing import Any

__all__ = ["FRAME_BYTES", "Inbox", "pack", "shared_with_no_child"]

HEADER = struct.Struct("!I")

FRAME_BYTES = 1 << 20
"""Longer frames are refused, because no member sends them."""

Frame = dict[str, Any]


def pack(frame: Frame) -> bytes:
    """``frame`` as bytes, its length first."""
    body = json.dumps(frame).encode()
    if len(body) > FRAME_BYTES:
        raise ValueError(f"a value of {len(body)} bytes is too long for the store of a group; {FRAME_BYTES} bytes is the most")
    return HEADER.pack(len(body)) + body


class Inbox:
    """Received bytes, and the frames in them."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, received: bytes) -> None:
        """Add received bytes."""
        self._bytes += received

    def take(self) -> Frame | None:
        """The next complete frame.

        Raises:
            ValueError: the bytes are not a frame.
        """
        if len(self._bytes) < HEADER.size:
            return None
        (length,) = HEADER.unpack_from(self._bytes)
        if length > FRAME_BYTES:
            raise ValueError(f"a frame of {length} bytes")
        end = HEADER.size + length
        if len(self._bytes) < end:
            return None
        frame = json.loads(self._bytes[HEADER.size : end])
        if not isinstance(frame, dict):
            raise ValueError("a frame that is not an object")
        del self._bytes[:end]
        return frame


_own: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def shared_with_no_child(stream: socket.socket) -> socket.socket:
    """The same socket, which a forked child closes, so that it is closed once this process is dead."""
    _own.add(stream)
    return stream


def _close_in_child() -> None:
    for stream in list(_own):
        stream.close()


os.register_at_fork(after_in_child=_close_in_child)
