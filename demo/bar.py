"""A progress bar on standard error: one line that redraws itself on a terminal, plain lines elsewhere."""

import os
import sys
import time

WIDTH = 28


class Bar:
    """Counts `total` steps under `title`; does nothing unless `visible`."""

    def __init__(self, title, total, visible=True):
        self.title, self.total, self.visible = title, total, visible
        self.terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self.done, self.began = 0, time.monotonic()

    def step(self, text=""):
        """One step is done; `text` stands behind the bar."""
        self.done += 1
        if not (self.visible and self.terminal):
            return
        full = WIDTH * self.done // self.total
        elapsed = time.monotonic() - self.began
        left = elapsed / self.done * (self.total - self.done)
        bar = "█" * full + "░" * (WIDTH - full)
        self._write(f"\r\x1b[2K{self.title:>12} {bar} {self.done}/{self.total}  {text}  {left:.0f} s left")

    def line(self, text):
        """A line that stays."""
        if self.visible:
            self._write(f"{self._erase()}{self.title:>12}  {text}\n")

    def close(self):
        """Takes the bar away."""
        if self.visible:
            self._write(self._erase())

    def _erase(self):
        return "\r\x1b[2K" if self.terminal else ""

    def _write(self, text):
        sys.stderr.write(text)
        sys.stderr.flush()
