"""The results of a setting's workers: times relative to Gloo's, and whether the parameters have the same bits."""

import json
import statistics

import numpy

RTOL, ATOL = 1e-3, 1e-5
"""The tolerance for parameters after some steps with sums in another order."""


class Setting:
    """Trainings that take turns at one place, and what their workers have left in `folder`."""

    def __init__(self, title, words, folder, trainings, reducers=0):
        self.title, self.words, self.folder = title, words, folder
        self.trainings, self.reducers = trainings, reducers
        self.ranks, self.parameters = [], {}

    def read(self, workers):
        """Reads it in."""
        self.ranks = [json.loads((self.folder / f"rank{rank}.json").read_text()) for rank in range(workers)]
        self.parameters = {name: numpy.load(self.folder / f"{name}.npy") for name in self.trainings}

    def rows(self):
        """A row for each training."""
        return [Row(self, name) for name in self.trainings]


class Row:
    """One training in one setting."""

    def __init__(self, setting, name):
        self.setting, self.name = setting, name
        self.ranks = [rank[name] for rank in setting.ranks]
        self.steps, self.accuracy = self.ranks[0]["steps"], self.ranks[0]["accuracy"]
        self.algorithm = self.ranks[0]["algorithm"]
        self.is_gloo = name == "gloo"
        seconds, waited = zip(*(step for steps in self.rounds() for step in steps))
        self.seconds, self.waited = statistics.median(seconds), statistics.median(waited)

    def rounds(self):
        """By round, the seconds of each step and of its waiting: means over the workers."""
        of_ranks = numpy.array([rank["rounds"] for rank in self.ranks])
        return of_ranks.mean(axis=0).tolist()

    def program(self):
        """What it is called."""
        if self.is_gloo:
            return "Gloo"
        reducers = self.setting.reducers
        return "Herringbone" if self.name == "herringbone" else f"Herringbone, {reducers} reducer{'s'[: reducers > 1]}"

    def sent(self):
        """Bytes that a worker's link carries in a step, each way; None without links."""
        counts = [rank["sent"] for rank in self.ranks]
        return statistics.mean(counts) if None not in counts else None

    def beside_gloo(self):
        """How many times as fast as Gloo a step was: the median over the rounds, the least, the most."""
        both = self.rounds(), Row(self.setting, "gloo").rounds()
        ours, theirs = ([statistics.median(step[0] for step in steps) for steps in each] for each in both)
        ratios = [gloo / own for gloo, own in zip(theirs, ours)]
        return statistics.median(ratios), min(ratios), max(ratios)

    def digests(self):
        """Of the parameters of all ranks."""
        return {rank["digest"] for rank in self.ranks}

    def digest(self):
        """The beginning of what identifies the parameters, if all ranks have the same ones."""
        return min(self.digests())[:8] if len(self.digests()) == 1 else "differ"


def table(settings):
    """The lines of the table."""
    layout = "{:<25}{:>8}{:>9}  {:<19}{:>7}  {}"
    yield layout.format("ms of a step", "all", "waiting", "speed vs. Gloo", "MB sent", "bits")
    for setting in settings:
        yield setting.words
        for row in setting.rows():
            median, least, most = row.beside_gloo()
            yield layout.format(
                f"  {row.program()}",
                f"{row.seconds * 1e3:.1f}",
                f"{row.waited * 1e3:.1f}",
                "" if row.is_gloo else f"{median:.2f} ({least:.2f}..{most:.2f})",
                "" if row.sent() is None else f"{row.sent() / 1e6:.1f}",
                row.digest(),
            )
    yield "Medians of all steps; speed: of the rounds, with the least and the most. A"
    yield "worker waits for sums and other workers, after its last gradient. MB: what its"
    yield "link carries in a step, each way. Bits: of all parameters in the end."


def difference(first, second):
    """The greatest |a - b| over all parameters, and whether all are equal within the tolerance."""
    return float(numpy.max(numpy.abs(first - second))), numpy.allclose(first, second, rtol=RTOL, atol=ATOL)


def facts(settings):
    """Sentences about the bits, and whether they are as promised."""
    rows = [row for setting in settings for row in setting.rows()]
    ours = [row for row in rows if not row.is_gloo]
    digests = sorted(set().union(*(row.digests() for row in ours)))
    theirs = [setting.parameters["gloo"] for setting in settings]
    greatest, agree = difference(settings[0].parameters["herringbone"], theirs[0])
    copies, verdict = len(ours) * len(ours[0].ranks), "the same bits" if len(digests) == 1 else "DIFFERENT BITS"
    said = [
        f"Herringbone: {verdict} in all {copies} copies of {len(theirs[0]):,} parameters after {ours[0].steps} steps, "
        f"by {', '.join(row.algorithm for row in ours)}.",
        f"Herringbone {'equals' if agree else 'DIFFERS FROM'} Gloo within rtol {RTOL:g}, atol {ATOL:g}: they differ by "
        f"up to {greatest:.1e}. Unseen digits they get right: {ours[0].accuracy:.1%}, {rows[0].accuracy:.1%}.",
    ]
    if len(theirs) > 1:
        apart, _ = difference(*theirs)
        alike = f"other bits: they differ by up to {apart:.1e}" if apart else "the same bits"
        said.append(f"Over links, where DDP uses larger buckets, Gloo's result has {alike}.")
    return said, agree and len(digests) == 1
