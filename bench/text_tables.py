"""Tables in Markdown, for records and the terminal."""

import json


def line(cells):
    """A row."""
    return f"| {' | '.join(cells)} |"


def table(heads, rows):
    """A whole table."""
    return "\n".join(line(row) for row in [heads, ["---"] * len(heads), *rows])


def aligned(header, rows):
    """The lines of a whole table whose columns are aligned."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in [header, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in cells]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def printed(heads, rows, cells, as_json):
    """Prints each of `rows` when it comes, as an object or with its `cells` as a row of a table, and yields it."""
    for number, row in enumerate(rows):
        if not as_json and number == 0:
            print(table(heads, []))
        print(json.dumps(row) if as_json else line(cells(row)), flush=True)
        yield row
