"""A progress bar on standard error: one line that redraws itself on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time

WIDTH = 28
REDRAW_SECONDS = 0.05
"""The shortest time between two updates of a bar."""


class Bar:
    """A bar for ``total`` steps or seconds, under ``title``; it shows nothing if it is not ``visible``."""

    def __init__(self, title: str, total: float, visible: bool = True) -> None:
        self.title, self.total, self.visible = title, total, visible
        self.terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self.done, self.began, self.drawn = 0.0, time.monotonic(), 0.0

    def step(self, text: str = "") -> None:
        """One step is done; ``text`` is shown behind the bar."""
        self.reach(self.done + 1, text)

    def reach(self, done: float, text: str = "") -> None:
        """``done`` in total is done; ``text`` is shown behind the bar. A call with 0 restarts the estimate of the remaining
        time."""
        if done == 0:
            self.began, self.drawn = time.monotonic(), -REDRAW_SECONDS
        self.done = done
        elapsed = time.monotonic() - self.began
        if not (self.visible and self.terminal) or (elapsed - self.drawn < REDRAW_SECONDS and done < self.total):
            return
        self.drawn = elapsed
        full = min(WIDTH, int(WIDTH * done / self.total))
        left = f"{elapsed / done * max(0.0, self.total - done):.0f} s left" if done else ""
        bar = "█" * full + "░" * (WIDTH - full)
        self._write(f"\r\x1b[2K{self.title:>12} {bar} {done:.0f}/{self.total:.0f}  {text}  {left}")

    def line(self, text: str) -> None:
        """A line that stays."""
        if self.visible:
            self._write(f"{self._erase()}{self.title:>12}  {text}\n")

    def close(self) -> None:
        """Removes the bar."""
        if self.visible:
            self._write(self._erase())

    def _erase(self) -> str:
        return "\r\x1b[2K" if self.terminal else ""

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
