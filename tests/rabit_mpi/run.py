"""Compiles programs of RABIT's interface over each MPI that is here, and runs them on 1 to 4 ranks; `make rabit-mpi` calls it.

`tests/capi/rabit_calls.cc` makes all calls, and `engine.cc` those that differ. `examples/rabit_boosting.cc` has to end with the same
model over libherringbone, which it can because it adds integers: an MPI adds floats in an order of its own. What ran is printed.
The last line is the sum.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from lab.job import environment

HERE = pathlib.Path(__file__).parent
DEBUG = ROOT / "target" / "debug"
BINARY, LIBRARY = DEBUG / "herringbone", DEBUG / "capi"
HEADERS = ROOT / "crates" / "capi" / "include"
CALLS, ENGINE, EXAMPLE = ROOT / "tests/capi/rabit_calls.cc", HERE / "engine.cc", ROOT / "examples/rabit_boosting.cc"
DIGITS = ROOT / "testdata" / "digits" / "digits.txt"
FLAGS = ("-std=c++11", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
SIZES = (1, 2, 3, 4)
LIMIT_SECONDS = 60
HINT = "no MPI is here: install one with its headers and mpirun (Debian: libopenmpi-dev openmpi-bin, or libmpich-dev mpich)"
DIGEST = re.compile(r"digest ([0-9a-f]{16})$", re.MULTILINE)


class Mpi:
    """An MPI: its compiler, and what starts its programs."""

    def __init__(self, suffix):
        self.compiler, self.mpirun = f"mpicxx{suffix}", f"mpirun{suffix}"
        self.is_here = all(map(shutil.which, [self.compiler, self.mpirun]))
        self.version = " ".join(run([self.mpirun, "--version"])[1].split())[:60] if self.is_here else ""
        is_open = "Open" in self.version
        # Open MPI has to be asked for more ranks than there are cores, and as root.
        self.options = ["--oversubscribe", "--allow-run-as-root"] if is_open else []
        # Ranks of others wait busily: with more of them than cores this takes minutes.
        self.sizes = [size for size in SIZES if is_open or size <= max(2, os.cpu_count() or 1)]

    def compile(self, source, folder):
        program = folder / f"{source.stem}-{self.compiler}"
        subprocess.run([self.compiler, *FLAGS, "-DHERRINGBONE_RABIT_MPI", f"-I{HEADERS}", source, "-o", program], check=True)
        return program

    def start(self, program, size, *arguments):
        """Its exit status, and what its ranks printed."""
        return run([self.mpirun, *self.options, "-n", str(size), program, *arguments])


def run(command):
    """Its exit status, and what it printed; one that takes too long has failed."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    try:
        done = subprocess.run(command, env=environment(), timeout=LIMIT_SECONDS, **options)
    except subprocess.TimeoutExpired as late:
        return None, f"not over after {LIMIT_SECONDS} s: {late.stdout!r}"
    return done.returncode, done.stdout


def mpis():
    """All that are here: Debian adds their names to those of their programs, and has one without."""
    named = [mpi for mpi in map(Mpi, [".openmpi", ".mpich"]) if mpi.is_here]
    return named or [mpi for mpi in [Mpi("")] if mpi.is_here]


def over_the_library(folder):
    """The digest of the example's model over libherringbone."""
    program, libraries = folder / "boosting", LIBRARY / "lib"
    linked = [f"-I{HEADERS}", f"-L{libraries}", "-lherringbone", f"-Wl,-rpath,{libraries}", "-pthread"]
    subprocess.run(["c++", *FLAGS, EXAMPLE, "-o", program, *linked], check=True)
    status, text = run([BINARY, "launch", "-n", "3", "--", program, DIGITS])
    assert status == 0, text
    [digest] = {*DIGEST.findall(text)}
    return digest


def checks(mpi, expected, folder):
    """(what ran, whether it was right, what it printed) for an MPI."""
    calls, engine, example = (mpi.compile(source, folder) for source in (CALLS, ENGINE, EXAMPLE))
    for size in mpi.sizes:
        for program in (calls, engine):
            status, text = mpi.start(program, size)
            yield f"{program.name}, {size}", status == 0, text
        status, text = mpi.start(example, size, DIGITS)
        yield f"{example.name}, {size}, digest {expected}", status == 0 and DIGEST.findall(text) == [expected] * size, text
    status, text = mpi.start(engine, 2, "wrong")
    is_said = "MPI_Bcast failed, and the job ends" in text and "truncated" in text
    yield f"{engine.name}, 2, an error of MPI ends it with a text", status not in (0, None) and is_said, text


def main():
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    found = mpis()
    if not found:
        sys.exit(HINT)
    passed = failed = 0
    with tempfile.TemporaryDirectory() as folder:
        expected = over_the_library(pathlib.Path(folder))
        for mpi in found:
            print(f"{mpi.compiler} {' '.join(FLAGS)}: {mpi.version}")
            for name, is_right, text in checks(mpi, expected, pathlib.Path(folder)):
                print(f"{'ok' if is_right else 'FAILED'}: {name}" + ("" if is_right else f"\n{text}"), flush=True)
                passed, failed = passed + is_right, failed + (not is_right)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
