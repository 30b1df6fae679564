"""Puts all pages into one folder for mkdocs, each where it lies in the repository, with the files that they link to.

Usage: tools/pages.py FOLDER. Standard library only. So a relative link works alike on the site and in the repository.
"""

import pathlib
import re
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PLACES = ("*.md", "docs/**/*.md", "examples/*.md", "record/*.md")
LINK = re.compile(r"\]\(([^)\s#]+)")


def pages():
    """All Markdown files that are documentation."""
    return sorted(path for place in PLACES for path in ROOT.glob(place))


def linked(page):
    """The files of the repository that a page links to, and that are no pages themselves."""
    for link in LINK.findall(page.read_text()):
        target = (page.parent / link).resolve()
        if not re.match(r"[a-z]+:", link) and target.is_file() and target.suffix != ".md":
            yield target


def main():
    folder = pathlib.Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    found = pages()
    for path in {*found, *(file for page in found for file in linked(page))}:
        place = folder / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)


if __name__ == "__main__":
    main()
