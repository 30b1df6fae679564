"""The live page of a real job: four ranks and two reducers, of which some are stopped or killed while the page is open."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import time
import urllib.request

import pytest
import rig

HERRINGBONE = rig.ROOT / "target" / "debug" / "herringbone"
PROGRAM = pathlib.Path(__file__).resolve().parent / "sums.py"
PAGE = re.compile(r"^\[(rank \d+|reducer \d+)\].* live page and metrics at (http://\S+)$")
SOON = 5
"""Seconds until the page shows what has happened."""
SECONDS = 60
"""Until all pages of a job are there, and until the job has ended."""


class Job:
    """A job that sums until it is ended, and where its processes have their pages."""

    def __init__(self):
        foreign = ("HERRINGBONE_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        # Without a token of the pages: they are open on this machine. A rank that is stopped stays in the job for a while.
        own = {"HERRINGBONE_ADMIN": "127.0.0.1:0", "HERRINGBONE_LOG": "info", "HERRINGBONE_PATIENCE_S": "30"}
        self.environment = kept | own | {"HERRINGBONE_TOKEN": "a token of the tests", "OMP_NUM_THREADS": "1"}
        self.environment.pop("PYTHONPATH", None)
        command = [HERRINGBONE, "launch", "-n", "4", "--reducers", "2", "--", os.environ["JOB_PYTHON"], PROGRAM]
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self.process = subprocess.Popen(command, env=self.environment, **options)
        self.pages, self.lines = {}, []
        threading.Thread(target=self.read, daemon=True).start()
        end = time.monotonic() + SECONDS
        while len(self.pages) < 6:
            assert time.monotonic() < end and self.process.poll() is None, "\n".join(self.lines)
            time.sleep(0.05)

    def read(self):
        """Where the pages are, from the job's log."""
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if found := PAGE.match(line):
                self.pages[found[1]] = found[2]

    def member(self, **wanted):
        """A member, as rank 0's page knows it."""
        with urllib.request.urlopen(f"{self.pages['rank 0']}job.json", timeout=SOON) as answer:
            members = json.load(answer)["members"]
        return next(member for member in members if wanted.items() <= member.items())

    def end(self):
        """Ends it, also what is stopped."""
        self.process.terminate()
        try:
            self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()


@pytest.fixture
def job():
    """A job that runs."""
    running = Job()
    yield running
    running.end()


@contextlib.contextmanager
def stopped(process):
    """Stops a process for a while."""
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


class Terminal:
    """`herringbone status --watch` of the job."""

    def __init__(self, job):
        address = job.member(rank=0)["address"]
        command = [HERRINGBONE, "status", "--watch=0.5", address]
        self.process = subprocess.Popen(command, env=job.environment, stdout=subprocess.PIPE, text=True)
        self.lines = []
        threading.Thread(target=lambda: self.lines.extend(self.process.stdout), daemon=True).start()

    def says(self, text):
        """Waits until it shows this, from now on."""
        begun, end = len(self.lines), time.monotonic() + SOON
        while not any(text in line for line in self.lines[begun:]):
            assert time.monotonic() < end, "".join(self.lines[-40:])
            time.sleep(0.05)

    def end(self):
        """Ends it as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(SOON) == 0


def late(words):
    """Whether the page says this of those that are late or lost, in red."""
    return f"[...document.querySelectorAll('#late .alarm')].some(line => line.innerText.includes({json.dumps(words)}))"


def test_the_page_shows_who_is_stopped_who_is_killed_and_what_a_reducer_does(browser, job):
    sheet, reducers = rig.Sheet(browser), rig.Sheet(browser)
    sheet.open(job.pages["rank 0"])
    reducers.open(job.pages["reducer 1"])
    terminal = Terminal(job)
    sheet.within(SOON, "document.querySelector('#late').innerText.includes('nobody is late')")
    sheet.within(SOON, "document.querySelectorAll('#map .link').length >= 16")
    # A reducer asks its workers for the whole job.
    number = re.search(r"job ([0-9a-f]{16}):", sheet.text("#head"))[1]
    reducers.within(SOON, f"document.querySelector('#head').innerText.includes('{number}')")
    assert "4 of 4" in reducers.text("#jobs")
    reducers.picture("job-reducer")

    with stopped(job.member(rank=2)["process"]):
        sheet.within(SOON, late("rank 2 keeps ranks 0, 1 and 3 and reducers"))
        assert "it does not answer" in sheet.text("#late")
        terminal.says("rank 2 keeps")
        sheet.picture("job-stopped")
    sheet.within(SOON, "document.querySelector('#late').innerText.includes('nobody is late')")
    assert "rank 2 answers again" in sheet.text("#events")

    killed = job.member(role="reducer")
    os.kill(killed["process"], signal.SIGKILL)
    sheet.within(SOON, late(f"reducer {killed['address']} is lost"))
    sheet.within(SOON, "document.querySelectorAll('#map .member.lost').length === 1")
    sheet.picture("job-killed")
    terminal.end()
    assert (sheet.close(), reducers.close()) == ([], [])
