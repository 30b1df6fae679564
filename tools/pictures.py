"""Draws schedules as docs/pictures/*.svg: time runs down, one column per rank, one arrow per message.

Usage: tools/pictures.py HERRINGBONE FOLDER. It reads what `herringbone show` prints, so a picture shows what runs and
cannot disagree with it. `show --svg` itself draws the pictures of steps, and tools/shards_picture.py one of shards. Standard
library only.
"""

import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tools")]

import shards_picture
from svg import BLUE, FAINT, GREEN, GREY, INK, ORANGE, PANEL, PINK, box, dot, line, picture, text

PICTURES = {
    "reduction_server": (
        "reduction_server",
        3,
        "With reducers: each worker sends its buffer once and gets the sum once",
        "--reducers",
        "3",
    ),
    "radix": ("radix", 4, "radix: each worker adds up one chunk of the buffer and sends it to all"),
    "doubling": ("doubling", 4, "doubling: in each round, pairs of workers swap what they have"),
    "one_shot": ("one_shot", 4, "one_shot: each worker sends its whole buffer to all others"),
    "tree": ("tree", 4, "tree: partial sums go up a tree, the result comes down"),
    "hierarchical": (
        "hierarchical(radix,reduction_server)",
        4,
        "hierarchical: two hosts of two workers add up first, then two reducers join the hosts",
        "--per-host",
        "2",
        "--reducers",
        "2",
    ),
    "ring": ("ring", 4, "ring: chunks travel round, one neighbour at a time"),
}
"""For each file: the algorithm, the number of workers, the title, what else `show` is told."""

STEPS = {
    "steps-ring": "--algorithm ring --ranks 4",
    "steps-reduction_server": "--algorithm reduction_server --ranks 4 --reducers 5",
    "steps-tree": "--algorithm tree --ranks 6",
}
"""For each file that `show --svg` draws: what it is told."""

COLOURS = (BLUE, ORANGE, GREEN, PINK)
"""One for each chunk of the buffer."""

COLUMN, ROUND, TOP, LEFT = 170, 92, 92, 40

Message = collections.namedtuple("Message", "source target chunk leaves")
"""Leaves the source at the end of a round, and is at the target at the end of the next one."""

Fold = collections.namedtuple("Fold", "rank chunk round done")
"""A sum that a rank makes in a round; it is done if all ranks are in it."""


def shown(binary, algorithm, workers, *rest):
    """The schedule's text."""
    command = [binary, "show", "--algorithm", algorithm, "--ranks", str(workers), *rest]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def programs(schedule):
    """Each rank's steps, as lines."""
    found = []
    for step in schedule.splitlines()[1:]:
        if step.startswith("rank "):
            found.append([])
        elif not step.strip().startswith("slots"):
            found[-1].append(step.strip())
    return found


class Rank:
    """A rank that runs its program: how far it is, in which round, and which chunk each place holds."""

    def __init__(self, number, steps):
        self.number, self.steps, self.at, self.round = number, steps, 0, 0
        self.chunks = {}

    def chunk_in(self, place):
        """A place of the buffer holds the chunk of its number; a slot holds the last one that was put there."""
        return int(place[1:]) if place.startswith("u") else self.chunks[place]


def run(schedule):
    """Runs all ranks in order; returns the messages and the folds."""
    ranks = [Rank(number, steps) for number, steps in enumerate(programs(schedule))]
    ways, messages, folds = collections.defaultdict(collections.deque), [], []
    while any(rank.at < len(rank.steps) for rank in ranks):
        before = sum(rank.at for rank in ranks)
        for rank in ranks:
            while rank.at < len(rank.steps) and step(rank, ways, messages, folds):
                rank.at += 1
        if sum(rank.at for rank in ranks) == before:
            raise ValueError("ranks wait for each other: this schedule has no drawing in order")
    return messages, folds


def step(rank, ways, messages, folds):
    """Takes a rank's next step; false if a message that it needs has not come."""
    words = rank.steps[rank.at].split()
    if words[0] == "send":
        for target in map(int, words[words.index("->") + 1 :]):
            message = Message(rank.number, target, rank.chunk_in(words[1]), rank.round)
            messages.append(message)
            ways[rank.number, target].append(message)
        return True
    sources = [int(number) for number in re.findall(r"@(\d+)|<- (\d+)", rank.steps[rank.at]) for number in number if number]
    if not all(ways[source, rank.number] for source in sources):
        return False
    for source in sources:
        rank.round = max(rank.round, ways[source, rank.number].popleft().leaves + 1)
    if words[0] in ("fold", "finish"):
        chunk = int(words[1][1:])
        rank.chunks[words[2]] = chunk
        folds.append(Fold(rank.number, chunk, rank.round, words[0] == "finish"))
    elif words[0] == "copy":
        rank.chunks[words[1]] = rank.chunk_in(words[3])
    return True


def drawing(schedule, title):
    """The whole picture."""
    workers, reducers, chunks = map(int, re.match(r"schedule workers=(\d+) reducers=(\d+) cut=\w+:(\d+)", schedule).groups())
    messages, folds = run(schedule)
    rounds = max(message.leaves for message in messages) + 1
    names = [f"worker {number}" for number in range(workers)] + [f"reducer {number}" for number in range(reducers)]
    width, height = 2 * LEFT + COLUMN * len(names), TOP + rounds * ROUND + 74
    width = max(width, LEFT + 8.2 * len(title))
    parts = [text(LEFT, 34, title, 16, weight=600), *columns(names, workers, rounds), *arrows(messages)]
    parts += sums(folds)
    parts += legend(chunks, height, any(not fold.done for fold in folds))
    return picture(width, height, title, parts)


def place(rank, round_):
    """Where a rank stands at the end of a round."""
    return LEFT + COLUMN * (rank + 0.5), TOP + ROUND * round_


def columns(names, workers, rounds):
    """Each rank's life, with its name above."""
    for number, name in enumerate(names):
        x, y = place(number, 0)
        yield text(x, y - 22, name, 14, INK if number < workers else GREY, "middle", 600)
        yield line([(x, y), (x, y + rounds * ROUND)], FAINT, 8)
    for number in range(rounds):
        yield text(LEFT - 30, TOP + ROUND * (number + 0.5) + 4, str(number + 1), 13, GREY)
    yield text(LEFT - 30, TOP - 22, "round", 11, GREY)


def arrows(messages):
    """One for each message; those of a pair of ranks in the same round lie side by side."""
    beside = collections.Counter()
    for message in messages:
        way = message.source, message.target, message.leaves
        shift = 7 * beside[way] - 3
        beside[way] += 1
        (x1, y1), (x2, y2) = place(message.source, message.leaves), place(message.target, message.leaves + 1)
        y1, y2 = y1 + 8 + shift, y2 - 14 + shift
        colour = COLOURS[message.chunk % len(COLOURS)]
        yield line([(x1, y1), (x2, y2)], colour, 2)
        yield line(head(x1, y1, x2, y2), colour, 2)


def head(x1, y1, x2, y2):
    """The two strokes at the end of an arrow."""
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    along, across = ((x2 - x1) / length, (y2 - y1) / length), (-(y2 - y1) / length, (x2 - x1) / length)
    back = x2 - 9 * along[0], y2 - 9 * along[1]
    return [
        (back[0] + 4 * across[0], back[1] + 4 * across[1]),
        (x2, y2),
        (back[0] - 4 * across[0], back[1] - 4 * across[1]),
    ]


def sums(folds):
    """A sign for each sum, beside its rank: filled once all workers are in it."""
    beside = collections.Counter()
    for fold in folds:
        x, y = place(fold.rank, fold.round)
        shift = 20 * beside[fold.rank, fold.round]
        beside[fold.rank, fold.round] += 1
        colour = COLOURS[fold.chunk % len(COLOURS)]
        if fold.done:
            yield dot(x + 14 + shift, y, colour, 9)
            yield text(x + 14 + shift, y + 5, "Σ", 13, "#ffffff", "middle", 700)
        else:
            yield from partial(x + 14 + shift, y, colour)


def partial(x, y, colour):
    """The sign of a sum that some workers are missing from."""
    yield dot(x, y, colour, 9)
    yield dot(x, y, PANEL, 7.5)
    yield text(x, y + 4.5, "+", 14, colour, "middle", 700)


def legend(chunks, height, has_partial_sums):
    """What the colours and signs mean."""
    x, y = LEFT, height - 22
    for chunk in range(chunks if chunks > 1 else 0):
        yield box(x, y - 10, 12, 12, COLOURS[chunk % len(COLOURS)])
        yield text(x + 17, y, f"chunk {chunk}", 12, GREY)
        x += 84
    colour = COLOURS[0] if chunks == 1 else GREY
    yield dot(x + 9, y - 4, colour, 8)
    yield text(x + 9, y, "Σ", 11, "#ffffff", "middle", 700)
    yield text(x + 23, y, "sum of all workers", 12, GREY)
    if has_partial_sums:
        yield from partial(x + 157, y - 4, colour)
        yield text(x + 171, y, "partial sum", 12, GREY)


def main():
    binary, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for name, (algorithm, workers, title, *rest) in PICTURES.items():
        (folder / f"{name}.svg").write_text(drawing(shown(binary, algorithm, workers, *rest), title))
    for name, args in STEPS.items():
        command = [binary, "show", *args.split(), "--svg", folder / f"{name}.svg"]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    (folder / "shards.svg").write_text(shards_picture.drawing())


if __name__ == "__main__":
    main()
