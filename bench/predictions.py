"""The common part of pages with predicted and measured times."""


def is_within(row, band):
    """Whether the prediction of `row` divided by what was measured lies in `band`: its least and its greatest ratio."""
    return band[0] <= row["ratio"] <= band[1]


def note(row, band):
    """What the last cell of a row says."""
    return "" if is_within(row, band) else "**outside**"


def inside(rows, band):
    """How many predictions lie in `band`, in words."""
    count = sum(is_within(row, band) for row in rows)
    return f"{count} of {len(rows)} predictions lie within {band[0]} to {band[1]}"


def constants_lines(name, text):
    """A page's lines with the constants, `text`, that are called `name`."""
    return [f"{name}:", "", "```text", text.rstrip(), "```", ""]
