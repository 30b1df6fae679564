"""Makes a virtual environment with pip, also where Debian's python3 came without ensurepip.

Usage: python3 tools/environment.py FOLDER. Standard library only. The ways to pip, in this order:
ensurepip; a pip that this Python has already; pip's wheel from the package index (PIP_INDEX_URL, else
PyPI), checked against the index's hash.
"""

import hashlib
import html.parser
import importlib.util
import os
import pathlib
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request

OLDEST = (3, 10)
WHEEL = re.compile(r"pip-(\d+)\.(\d+)(?:\.(\d+))?-py3-none-any\.whl")


class Links(html.parser.HTMLParser):
    """The links of a page of the package index: name, address with hash, lowest Python version."""

    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        href = dict(attrs).get("href") or ""
        lowest = re.search(r">=\s*3\.(\d+)", dict(attrs).get("data-requires-python") or "")
        match = WHEEL.search(urllib.parse.urlsplit(href).path)
        if tag == "a" and match:
            version = tuple(int(part or 0) for part in match.groups())
            self.found.append((version, href, (3, int(lowest[1]) if lowest else 0)))


def fetch(address, accept="*/*"):
    """The bytes behind an address."""
    request = urllib.request.Request(address, headers={"Accept": accept})
    context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT") or None)
    with urllib.request.urlopen(request, context=context, timeout=60) as answer:
        return answer.read()


def wheel_from_index(folder):
    """Downloads the newest pip that runs on this Python into `folder`."""
    index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/") + "/pip/"
    links = Links(fetch(index, "text/html").decode())
    fitting = [link for link in links.found if link[2] <= sys.version_info[:2]]
    href = max(fitting)[1]
    address, _, digest = urllib.parse.urljoin(index, href).partition("#sha256=")
    content = fetch(address)
    if hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(f"{address} does not have the hash that {index} gives")
    path = pathlib.Path(folder) / urllib.parse.urlsplit(address).path.rsplit("/", 1)[1]
    path.write_bytes(content)
    return path


def with_ensurepip(folder):
    """Python's own way."""
    run(sys.executable, "-m", "venv", folder)


def with_own_pip(folder):
    """The pip that this Python has installs one into the environment."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    run(sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "-q", "pip")


def with_index(folder):
    """pip's wheel installs itself."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    with tempfile.TemporaryDirectory() as download:
        wheel = wheel_from_index(download)
        run(folder / "bin" / "python", wheel / "pip", "install", "-q", "--no-index", wheel)


def run(*command):
    subprocess.run(command, check=True)


def main():
    if sys.version_info < OLDEST:
        sys.exit(
            f"Python {OLDEST[0]}.{OLDEST[1]} or later is needed and this is {sys.version.split()[0]}: "
            "name another with `make PYTHON=/path/to/python3`"
        )
    folder = pathlib.Path(sys.argv[1])
    ways = [with_ensurepip] if importlib.util.find_spec("ensurepip") else []
    ways += [with_own_pip] if importlib.util.find_spec("pip") else []
    for way in [*ways, with_index]:
        shutil.rmtree(folder, ignore_errors=True)
        try:
            return way(folder)
        except (OSError, ValueError, subprocess.CalledProcessError) as failure:
            print(f"{way.__name__}: {failure}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    sys.exit("no virtual environment can be made; on Debian this helps: sudo apt install python3-venv")


if __name__ == "__main__":
    main()
