"""Starts a numpy program by real launchers, with no address chosen by hand; `make launchers` calls it.

Each launcher starts three ranks, which add over all of them; the sum has to be right on each. Where something is wrong
the job has to fail and say so. A launcher that is not installed is skipped by name. The exit code is 0 if nothing failed.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import slurm

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RANKS = 3
SECONDS = 120
"""A job takes about 3 s; one that takes longer hangs."""
PROGRAM = (sys.executable, str(HERE / "sums.py"))
TWICE = ("sh", "-c", f"{' '.join(PROGRAM)} && exec {' '.join(PROGRAM)}")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={RANKS}")
OPEN_MPI = ("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", str(RANKS))
MPICH = ("mpirun.mpich", "-n", str(RANKS))
SRUN = ("srun", "--quiet", "--overcommit")
SALLOC = ("salloc", "--quiet", "--overcommit", f"-n{RANKS}")
LAUNCH = (sys.executable, "-m", "herringbone", "launch", "-n", str(RANKS), "--")


@dataclasses.dataclass(frozen=True)
class Case:
    """A job, and what has to come of it."""

    launcher: str
    how: str
    command: tuple
    set: dict = dataclasses.field(default_factory=dict)
    runs: int = 1
    """How many times each rank has to have the sum; 0: the job has to fail, and its first rank to say `says`."""
    ranks: int = RANKS
    says: str = ""
    checks_itself: bool = False
    """Whether the program fails if a sum is wrong, so that what it says is all there is to see."""

    @property
    def slurm(self):
        """Whether it needs Slurm's daemons."""
        return self.launcher == "Slurm"

    @property
    def missing(self):
        """The program that this machine lacks, or nothing."""
        wanted = [word for word in self.command if word.startswith(("mpirun.", "srun", "salloc"))]
        return next((word for word in wanted if shutil.which(word) is None), "")


CASES = (
    Case("none", "`python sums.py`", PROGRAM, ranks=1, says="so it is a world of 1"),
    Case("herringbone launch", "`herringbone launch -n 3`", LAUNCH + PROGRAM, says="the environment sets rank 2 of 3"),
    Case("torchrun", "`torchrun --standalone`", (*TORCHRUN, "--standalone", PROGRAM[1]), says="torchrun sets rank 2 of 3"),
    Case(
        "torchrun",
        "`torchrun --master-port=...`",
        (*TORCHRUN, f"--master-port={slurm.free_ports(1)[0]}", PROGRAM[1]),
        says="torchrun says",
    ),
    Case(
        "torchrun",
        "two programs, one after the other",
        (*TORCHRUN, "--standalone", "--no-python", *TWICE),
        runs=2,
        says="torchrun says",
    ),
    Case("Open MPI", "`mpirun -n 3`", OPEN_MPI + PROGRAM, says="Open MPI sets rank 2 of 3"),
    Case("Open MPI", "two programs, one after the other, from a shell", OPEN_MPI + TWICE, runs=2, says="Open MPI sets"),
    Case(
        "Open MPI",
        "with `RANK=0 WORLD_SIZE=2` of another launcher",
        OPEN_MPI + PROGRAM,
        {"RANK": "0", "WORLD_SIZE": "2"},
        runs=0,
        says="sets rank 0 of 2 (RANK=0, WORLD_SIZE=2), but Open MPI sets rank ",
    ),
    Case("MPICH", "`mpirun -n 3`", MPICH + PROGRAM, says="MPICH (PMI) sets rank 2 of 3"),
    Case("MPICH", "two programs, one after the other, from a shell", MPICH + TWICE, runs=2, says="MPICH (PMI) says"),
    Case("Slurm", "`srun -n 3`", (*SRUN, "-n3", *PROGRAM), says="Slurm sets rank 2 of 3"),
    Case("Slurm", "`srun --mpi=pmi2 -n 3`", (*SRUN, "--mpi=pmi2", "-n3", *PROGRAM), says="MPICH (PMI) says"),
    Case(
        "Slurm", "`srun -n 1 torchrun`", (*SRUN, "-n1", *TORCHRUN, "--standalone", PROGRAM[1]), says="torchrun sets rank 2 of 3"
    ),
    Case("Slurm", "`mpirun` of MPICH in an allocation", (*SALLOC, *MPICH, *PROGRAM), says="MPICH (PMI) sets rank 2 of 3"),
    Case("Slurm", "`mpirun` of Open MPI in an allocation", (*SALLOC, *OPEN_MPI, *PROGRAM), says="Open MPI sets rank 2 of 3"),
    Case(
        "Slurm",
        "an allocation of 3 tasks without srun",
        (*SALLOC, *PROGRAM),
        ranks=1,
        says="Slurm's job has 3 tasks (SLURM_NTASKS), and only srun starts them",
    ),
)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="launchers whose name has this text in it; the record stays as it was")
    parser.add_argument("--ray", help="a Python that has ray[train], torch and herringbone, for Ray Train")
    parser.add_argument("--record", type=pathlib.Path, help="a file for the table")
    return parser.parse_args()


def environment(**extra):
    """This environment without the variables of a job, with the log that says which launcher counts."""
    foreign = ("HERRINGBONE_", "MASTER_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_", "SLURM_", "OMPI_", "PMI")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return kept | {"OMP_NUM_THREADS": "1", "HERRINGBONE_LOG": "info"} | extra


def run(command, variables):
    """Runs a job to its end: its exit status, its output and what it said besides. What it started ends with it."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, said = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        output, said = "", f"it ran for more than {SECONDS} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return process.returncode, output, said


def judged(case, status, output, said):
    """What came of a job, and None; or nothing, and what is wrong."""
    if case.says not in output + said:
        return "", f"nobody said {case.says!r}"
    if case.runs == 0:
        return ("refused, with both values", None) if status != 0 else ("", "it did not fail")
    if case.checks_itself:
        return (f"sums of {case.ranks} ranks are right", None) if status == 0 else ("", f"exit status {status}")
    # Launchers may put lines of several ranks into one.
    lines = map(json.loads, re.findall(r'\{"rank"[^}]*\}', output))
    found = sorted(lines, key=lambda line: line["rank"])
    total = case.ranks * (case.ranks + 1) / 2
    of_rank = [{"rank": rank, "size": case.ranks, "sums": [total], "again": True} for rank in range(case.ranks)]
    wanted = [line for line in of_rank for _ in range(case.runs)]
    if status != 0 or found != wanted:
        return "", f"exit status {status}, and {found}"
    return ("a world of 1, with a warning" if case.ranks == 1 else f"sums of {case.ranks} ranks are right"), None


def version(launcher, rays):
    """What the launcher says of itself; `rays` is the Python that has Ray."""
    words = {
        "Ray Train": [rays, "-c", "import ray; print('ray', ray.__version__)"],
        "Open MPI": ["mpirun.openmpi", "--version"],
        "MPICH": ["mpichversion"],
        "Slurm": [shutil.which("slurmctld", path=slurm.PATH) or "slurmctld", "-V"],
        "torchrun": [sys.executable, "-c", "import torch; print('torch', torch.__version__)"],
    }.get(launcher)
    if words is None or shutil.which(words[0]) is None:
        return ""
    said = subprocess.run(words, capture_output=True, text=True, check=False).stdout.split("\n")[0]
    return " ".join(said.split()).removeprefix("mpirun.openmpi (OpenRTE) ").removeprefix("MPICH Version: ")


def outcome(case, cluster):
    """The row of a case."""
    lacks = case.missing or (cluster.missing if case.slurm else "")
    if lacks:
        return row(case, f"skipped: {lacks} is missing on this machine", None)
    began = time.monotonic()
    status, output, said = run(case.command, case.set | (cluster.variables if case.slurm else {}))
    result, wrong = judged(case, status, output, said)
    if wrong:
        wrong += f"\n{output[-3000:]}\n{said[-3000:]}"
    return row(case, result, wrong, time.monotonic() - began)


def row(case, result, wrong, seconds=0.0):
    """A row of the table; `wrong` is None, or what went wrong."""
    return {"launcher": case.launcher, "how": case.how, "result": result, "wrong": wrong, "seconds": seconds}


def table(rows, rays):
    """The rows in Markdown."""
    lines = ["| launcher | version | how | result |", "|---|---|---|---|"]
    for each in rows:
        cells = [each["launcher"], version(each["launcher"], rays), each["how"], each["result"] or "FAILED"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def ray(python):
    """Ray Train, whose TorchTrainer sets torch's variables."""
    how = '`TorchTrainer` with `TorchConfig(backend="herringbone")`'
    return Case("Ray Train", how, (python, str(HERE / "ray_train.py")), says="3 ranks are right", checks_itself=True)


def main():
    options, rows = arguments(), []
    known = (*CASES, ray(options.ray)) if options.ray else CASES
    cases = [case for case in known if not options.only or options.only.lower() in case.launcher.lower()]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        cluster = slurm.Cluster(pathlib.Path(folder))
        if any(case.slurm for case in cases):
            stack.enter_context(cluster)
        for case in cases:
            each = outcome(case, cluster)
            rows.append(each)
            words = f"{each['launcher']}, {each['how']}: {each['wrong'] or each['result']} ({each['seconds']:.0f} s)"
            print(words, flush=True)
    if options.record and not options.only:
        machine = (
            f"{RANKS} ranks on one host with {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}, Python "
            f"{platform.python_version()}; `make launchers` writes this page. No job gets an address for Herringbone."
        )
        options.record.write_text(f"# Real launchers\n{machine}\n\n{table(rows, options.ray or sys.executable)}")
    failed = sum(each["wrong"] is not None for each in rows)
    print(f"{len(rows)} jobs, {failed} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
