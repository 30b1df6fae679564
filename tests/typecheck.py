"""Checks the types of all Python here with mypy, by mypy.ini; arguments are mypy's.

A file has the name by which others import it. If several files of those folders have one name, such as `run.py`, an import finds
the first, and the others are named by their paths.
"""

import configparser
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = ("herringbone", "lab")
TREES = ("bench", "demo", "deploy", "examples", "python/tests", "tests", "tools")


def modules():
    """The names of all files that belong to no package."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "mypy.ini")
    named = {}
    for folder in settings["mypy"]["mypy_path"].split(":"):
        for path in sorted((ROOT / folder).glob("*.py")):
            named.setdefault(path.stem, path)
    others = {path for tree in TREES for path in (ROOT / tree).rglob("*.py")} - {*named.values()}
    return [*named, *sorted(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in others)]


def main():
    packages = [word for name in PACKAGES for word in ("-p", name)]
    names = [word for name in modules() for word in ("-m", name)]
    sys.exit(subprocess.call([sys.executable, "-m", "mypy", *sys.argv[1:], *packages, *names], cwd=ROOT))


if __name__ == "__main__":
    main()
