"""Makes a virtual environment with pip, which borrows torch from this Python if its torch is new enough.

Usage: python3 tools/environment.py FOLDER [--alone]. Standard library only. The ways to pip, in this order:
ensurepip; a pip that this Python has already; pip's wheel from the package index (PIP_INDEX_URL, else
PyPI), checked against the index's hash. So it works also where Debian's python3 came without ensurepip.
With --alone it borrows nothing: for programs that need no torch.

To borrow is to look for packages also where this Python has its own: nothing is installed there. An
environment that works is kept, with what is installed in it. FOLDER/python.stamp is renewed if something
has changed.
"""

import hashlib
import html.parser
import importlib.metadata
import importlib.util
import os
import pathlib
import re
import shutil
import site
import ssl
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request

HERE = pathlib.Path(__file__).resolve()
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


def answer(folder, program):
    """What a Python program prints in the environment; None if it fails."""
    python = folder / "bin" / "python"
    try:
        done = subprocess.run([python, "-c", program], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def works(folder):
    """Whether the environment is there, has pip, and is of this Python."""
    return answer(folder, "import pip, sys; print(sys.base_prefix, *sys.version_info)") == " ".join(
        map(str, [sys.base_prefix, *sys.version_info])
    )


def make(folder):
    """Makes the environment by the first way that works."""
    ways = [with_ensurepip] if importlib.util.find_spec("ensurepip") else []
    ways += [with_own_pip] if importlib.util.find_spec("pip") else []
    for way in [*ways, with_index]:
        shutil.rmtree(folder, ignore_errors=True)
        try:
            return way(folder)
        except (OSError, ValueError, subprocess.CalledProcessError) as failure:
            print(f"{way.__name__}: {failure}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    sys.exit("cannot make a virtual environment; on Debian, run: sudo apt install python3-venv")


def torch_in(folder):
    """The version of torch in the environment, if it is new enough, as pip says, and can train; else None."""
    [wanted] = re.findall(r"^torch\b.*", (HERE.parents[1] / "requirements.txt").read_text(), re.MULTILINE)
    ask = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wanted]
    if subprocess.run(ask, capture_output=True).returncode != 0:
        return None
    return answer(folder, "import torch; torch.distributed.is_available() or exit(1); print(torch.__version__)")


def borrow(folder):
    """Lets the environment use the packages of this Python, if torch is one of them; returns a text about the torch in use."""
    places = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    lines = [f"import site; site.addsitedir({place!r})\n" for place in places if os.path.isdir(place)]
    borrowed = pathlib.Path(answer(folder, "import sysconfig; print(sysconfig.get_path('purelib'))")) / "borrowed.pth"
    borrowed.unlink(missing_ok=True)
    own = answer(folder, "import importlib.metadata as m; print(m.version('torch'))")
    if own is None and importlib.util.find_spec("torch"):
        borrowed.write_text("".join(lines))
        if version := torch_in(folder):
            link_programs(folder)
            return f"torch {version} of {sys.prefix} is used; nothing is installed or changed there"
        borrowed.unlink()
        return f"torch of {sys.prefix} is too old or cannot be imported: another one will be downloaded"
    if own is None:
        return f"{sys.executable} has no torch: it will be downloaded"
    return f"torch {own} is installed in {folder}"


def link_programs(folder):
    """Commands of borrowed packages that are called by their names: maturin, a binary, and torchrun, a script."""
    programs = folder / "bin"
    try:
        files = importlib.metadata.files("maturin") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "maturin" and os.access(file.locate(), os.X_OK):
            (programs / "maturin").unlink(missing_ok=True)
            (programs / "maturin").symlink_to(pathlib.Path(file.locate()).resolve())
    torchrun = programs / "torchrun"
    # The system takes no long path in the first line of a script, nor one with spaces; to Python the shell's line is a string.
    begin = f"#!/bin/sh\n'''exec' \"{programs.resolve() / 'python'}\" \"$0\" \"$@\"\n'''\n"
    torchrun.write_text(f"{begin}import runpy\n\nrunpy.run_module('torch.distributed.run', run_name='__main__')\n")
    torchrun.chmod(0o755)


def main():
    if sys.version_info < OLDEST:
        sys.exit(
            f"Python {OLDEST[0]}.{OLDEST[1]} or later is needed and this is {sys.version.split()[0]}: "
            "name another with `make PYTHON=/path/to/python3`"
        )
    folder, stamp = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[1], "python.stamp")
    if not works(folder):
        make(folder)
    before = stamp.read_text() if stamp.exists() else ""
    is_own = os.path.realpath(sys.prefix) == os.path.realpath(folder)
    is_alone = sys.argv[2:] == ["--alone"]
    said = f"{folder} is there, alone" if is_alone else before if is_own else borrow(folder)
    print(said)
    if said != before or not stamp.exists() or stamp.stat().st_mtime < HERE.stat().st_mtime:
        stamp.write_text(said)


if __name__ == "__main__":
    main()
