"""Compiles programs in C and C++ over libherringbone.so, and runs them as ranks; a stage of tests/run.py calls it.

Each program is compiled by every compiler that is here, as C11 or C++17 with all warnings as errors, over the library that
`make target/debug/herringbone` installs; pkg-config finds that if it is here. Processes of the example are killed at random times.
What ran is printed. The last line is the sum.
"""

import argparse
import concurrent.futures
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "bench")]

from ports import free_port

from lab.job import environment
from lab.launched import ranks_of

HERE = pathlib.Path(__file__).parent
DEBUG = ROOT / "target" / "debug"
BINARY, PREFIX = DEBUG / "herringbone", DEBUG / "capi"
REFUSED = HERE / "refused" / "parts.cc"
PART = re.compile(r"if PART == (\d+) // (.*)")
EXAMPLE, DIGITS = ROOT / "examples" / "rabit_boosting.cc", ROOT / "testdata" / "digits" / "digits.txt"
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")
COMPILERS = {"c": [("gcc", "-std=c11"), ("clang", "-std=c11")], "cc": [("g++", "-std=c++17"), ("clang++", "-std=c++17")]}
KILLED = -9
JOBS_AT_ONCE = 4
LIMIT_SECONDS = 60
LOSSES = {
    "local": [["0,1,2,0", "2,2,3,0"], ["1,2,1,0", "1,2,3,1", "0,3,4,0"]],
    "lazy": [["0,1,2,0", "2,2,3,0"]],
}
"""Jobs of rabit_recovers: its kind of checkpoints, and where which ranks kill themselves, as RANK,VERSION,CALL,ATTEMPT."""
VERSIONS, PREPARED_CALLS = 4, (0, 3)
"""Of that program: its versions, and in each version the calls whose input it prepares."""


def compile_program(prefix, source, compiler, standard, folder):
    """The program, over the library that is installed below the prefix."""
    program = folder / f"{source.stem}-{compiler}"
    flags = pkg_config(prefix) or [f"-I{prefix}/include", f"-L{prefix}/lib", "-lherringbone"]
    own = [*WARNINGS, "-pthread", "-o", str(program), str(source), *flags, f"-Wl,-rpath,{prefix}/lib", "-lm"]
    subprocess.run([compiler, standard, *own], check=True)
    return program


def pkg_config(prefix):
    """What it says of the library, if it is here; without it, nothing."""
    if not shutil.which("pkg-config"):
        return []
    place = os.environ | {"PKG_CONFIG_PATH": f"{prefix}/lib/pkgconfig"}
    said = subprocess.run(["pkg-config", "--cflags", "--libs", "herringbone"], env=place, stdout=subprocess.PIPE, check=True)
    return said.stdout.decode().split()


def refused(prefix, compiler, standard):
    """How many parts of REFUSED are there, and what is wrong: each is an error with its sentence, and what surrounds them is none."""
    parts = [("0", ""), *PART.findall(REFUSED.read_text())]
    problems = []
    for part, words in parts:
        command = [compiler, standard, f"-I{prefix}/include", f"-DPART={part}", "-fsyntax-only", str(REFUSED)]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        is_right = (done.returncode != 0) == bool(words) and words in done.stderr
        problems += [] if is_right else [f"FAILED: part {part} should be refused with {words!r}: {done.stderr}"]
    return len(parts), problems


def started(program, size):
    """Each rank's exit status, and all that they printed: as processes that find their places in variables and arguments."""
    address = f"127.0.0.1:{free_port()}"

    def rank(number):
        place = {"RANK": str(number), "WORLD_SIZE": str(size), "HERRINGBONE_STORE": address}
        options = {"env": environment(place), "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "timeout": LIMIT_SECONDS}
        done = subprocess.run([program, str(number), str(size), address], **options)
        return done.returncode, done.stdout.decode(errors="replace")

    with concurrent.futures.ThreadPoolExecutor(size) as threads:
        ended = [*threads.map(rank, range(size))]
    return [status for status, _ in ended], "".join(text for _, text in ended)


def launched(program, size, *arguments):
    """The same by `herringbone launch`, which has one status."""
    command = [BINARY, "launch", "-n", str(size), "--max-attempts", "5" if arguments else "1", "--", program, *arguments]
    done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_SECONDS)
    return [done.returncode], done.stdout.decode(errors="replace")


def recovered(program, size):
    """The same of all jobs of rabit_recovers. If one differs from the undisturbed one, the status is 1 and the text says how."""
    text = ""
    for kind, jobs_of_kind in LOSSES.items():
        expected = None
        # A job whose ranks have all ended begins anew: one rank is not killed.
        for losses in [[], *(jobs_of_kind if size > 1 else [])]:
            statuses, text = launched(program, size, kind, *losses)
            if statuses != [0]:
                return statuses, text
            models, problem = outcome(text, size, losses)
            expected = expected or models
            if problem or models != expected:
                return [1], f"{kind} {losses}: {problem or f'the models are {models} and not {expected}'}\n{text}"
    return [0], text


def outcome(text, size, losses):
    """The models of all ranks, and what is wrong with what a job has printed."""
    starts, ends = ({rank: [] for rank in range(size)} for _ in range(2))
    for line in text.splitlines():
        rank, _, words = line.removeprefix("[rank ").partition("] ")
        match words.split():
            case ["start", process]:
                starts[int(rank)].append(process)
            case ["end", *found]:
                ends[int(rank)].append(found)
    if any(len(lines) != 1 or lines[0][0] != starts[rank][-1] for rank, lines in ends.items()):
        return None, "a rank has not come to its end once, in its last process"
    prepared = dict.fromkeys(range(size), VERSIONS * len(PREPARED_CALLS))
    again = dict.fromkeys(range(size), 0)
    for rank, version, call, _ in [map(int, loss.split(",")) for loss in losses]:
        # The last process prepares the inputs whose results nobody has yet.
        prepared[rank] = (VERSIONS - version) * len(PREPARED_CALLS) - sum(before < call for before in PREPARED_CALLS)
        again[rank] += 1
    if {rank: len(starts[rank]) - 1 for rank in starts} != again:
        return None, f"ranks should start again {again} times"
    if {rank: int(ends[rank][0][1]) for rank in ends} != prepared:
        return None, f"the inputs that should be prepared are {prepared}"
    return [ends[rank][0][2:] for rank in ends], None


def killed(program, size):
    """The same of the example whose processes are killed at random. If its models are not that of a single rank, the status is 1."""
    seed = random.SystemRandom().randrange(1 << 32)
    draw = random.Random(seed)
    # Early enough that none is killed at its end, where the others have left.
    losses = [(20, [0]), (50, draw.sample(range(size), 1)), (80, draw.sample(range(size), 2))]
    whole, expected, text = boosted(program, 1, [], draw)
    status, found, disturbed = boosted(program, size, losses, draw)
    is_right = whole == status == 0 and not losses and len(expected) == 1 and found == expected * size
    return [0 if is_right else 1], f"seed {seed}: these losses are left: {losses}\n{text}{disturbed}"


def boosted(program, size, losses, draw):
    """The status of the example, the digests of its models and what it printed. Losses are trees, and ranks killed after them."""
    pause = ["3"] if losses else []
    command = [BINARY, "launch", "-n", str(size), "--max-attempts", "9", "--", program, DIGITS, *pause]
    options = {"env": environment(), "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    text = ""
    with subprocess.Popen(command, **options) as job:
        limit = threading.Timer(LIMIT_SECONDS, job.terminate)
        limit.start()
        for line in job.stdout:
            text += line
            tree = re.search(r"tree (\d+) of", line)
            if tree and losses and int(tree[1]) >= losses[0][0]:
                time.sleep(draw.uniform(0, 0.05))
                processes = ranks_of(job.pid)
                for rank in losses.pop(0)[1]:
                    os.kill(processes[rank], signal.SIGKILL)
        limit.cancel()
    return job.returncode, re.findall(r"digest (\w+)$", text, re.MULTILINE), text


def jobs(source):
    """(how it starts, ranks, the statuses that are right) of each job of a program."""
    match source.stem:
        case "collectives":
            return [(launched, size, [0]) for size in (1, 2, 3)]
        case "types":
            return [(started, size, [0] * size) for size in (1, 2, 3)]
        case "mistakes":
            return [(started, 1, [0]), (started, 2, [0, 0])]
        case "rabit_calls" | "rabit_checkpoints":
            return [(launched, size, [0]) for size in (1, 3)]
        case "rabit_mistakes":
            return [(started, 1, [0])]
        case "rabit_recovers":
            return [(recovered, 1, [0]), (recovered, 3, [0])]
        case "rabit_boosting":
            return [(killed, 3, [0])]
        case "lost":
            return [(started, 3, [0, KILLED, 0])]
        case name:
            raise AssertionError(f"which jobs does {name} have?")


def version(compiler):
    """The first line of what it says of itself."""
    return subprocess.run([compiler, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prefix", type=pathlib.Path, default=PREFIX, help="below which the library is installed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(JOBS_AT_ONCE) as threads:
        folder, prefix = pathlib.Path(folder), options.prefix.resolve()
        units = []
        # The longest job begins first.
        for source in [EXAMPLE, *sorted([*HERE.glob("*.c"), *HERE.glob("*.cc")])]:
            for compiler, standard in COMPILERS[source.suffix.removeprefix(".")]:
                if shutil.which(compiler):
                    units.append((prefix, source, compiler, standard, folder))
        missing = {name for known in COMPILERS.values() for name, _ in known if not shutil.which(name)}
        for compiler, standard in sorted({unit[2:4] for unit in units}):
            print(f"{compiler} {standard} {' '.join(WARNINGS)}: {version(compiler)}")
        if missing:
            print(f"not here: {', '.join(sorted(missing))}")
        programs = [threads.submit(compile_program, *unit) for unit in units]
        planned = [(program, *job) for unit, program in zip(units, programs) for job in jobs(unit[1])]
        ended = threads.map(lambda job: job[1](job[0].result(), job[2]), planned)
        failed, checked = 0, 0
        for compiler, standard in COMPILERS["cc"]:
            if shutil.which(compiler):
                number, problems = refused(prefix, compiler, standard)
                checked += number
                failed += len(problems)
                print("\n".join(problems) or f"ok: {compiler} refuses {number - 1} mistakes, each with its sentence")
        for (compiled, start, size, right), (statuses, text) in zip(planned, ended):
            program, is_right = compiled.result(), statuses == right
            failed += not is_right
            print(f"{'ok' if is_right else 'FAILED'}: {program.name}, {size} rank{'s' if size > 1 else ''}, {start.__name__}")
            if not is_right:
                print(f"ended with {statuses} in place of {right}:\n{text}")
    print(f"{len(planned) + checked - failed} passed, {failed} failed")
    sys.exit(1 if failed or not planned else 0)


if __name__ == "__main__":
    main()
