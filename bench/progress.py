"""What runs now, how much is done and how long the rest will take, as lines on standard error."""

import sys
import time


class Progress:
    """Counts runs (one program, one round of one panel) over all panels.

    `panels` holds the programs of each panel in the order of one round, and how many rounds there are. bench.py makes
    a folder `bench-PROGRAM-...` for each run and removes it afterwards; that is how a run is seen.
    """

    def __init__(self, panels):
        self.order = [list(programs) * rounds for programs, rounds in panels]
        self.spent = [0.0] * len(self.order)  # seconds per run, for each panel
        self.current = self.done = 0
        self.seen, self.began = set(), 0.0

    def panel(self, index, title):
        """The panel `index` begins."""
        self.current, self.done, self.seen = index, 0, set()
        self.began = time.monotonic()
        self.tell(title)

    def look(self, places):
        """Looks which program runs now, and says so if that is news."""
        for path in sorted(places.glob("bench-*")):
            if path.name not in self.seen:
                self.seen.add(path.name)
                self.program(path.name.removeprefix("bench-").rsplit("-", 1)[0])

    def program(self, name):
        """`name` begins; what stands before it in the panel's order is over, seen or not."""
        order = self.order[self.current]
        if name not in order[self.done :]:
            return
        self.done = order.index(name, self.done)
        if self.done:
            self.spent[self.current] = (time.monotonic() - self.began) / self.done
        before = sum(len(each) for each in self.order[: self.current]) + self.done
        self.tell(f"  {before + 1} of {sum(map(len, self.order))}  {name}{self.remaining()}")
        self.done += 1

    def remaining(self):
        """An estimate of the time left: a run takes as long as the mean of its panel's, else of the last one's."""
        known = [each for each in self.spent[: self.current + 1] if each]
        if not known:
            return ""
        runs = len(self.order[self.current]) - self.done + sum(len(each) for each in self.order[self.current + 1 :])
        minutes, seconds = divmod(round(runs * known[-1]), 60)
        return f", about {minutes} min {seconds} s left" if minutes else f", about {seconds} s left"

    def tell(self, line):
        """One line."""
        print(line, file=sys.stderr, flush=True)
