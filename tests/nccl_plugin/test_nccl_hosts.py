"""The plug-in for NCCL between hosts, which are network namespaces with links of limited rate.

The ranks are those of `crates/nccl-plugin/tests/harness/processes.rs`, which says what they print and read: each prints its handle, reads
that of the next rank, and then sums. This module starts one on each host, as that file does on one.
"""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from lab.hosts import Namespaces, NoNamespaces

VERSIONS = (8, 10, 11, 12)
MARK = "said: "
PATIENCE_SECONDS = 300


@pytest.fixture(scope="module")
def harness():
    """The program of the tests in Rust."""
    if shutil.which("cargo") is None:
        pytest.skip("cargo is not here: it builds the ranks")
    # Of the workspace, as Rust's tests are: by itself it would have other features, and everything would be compiled again.
    build = ["cargo", "test", "--workspace", "--test", "harness", "--no-run", "--message-format", "json"]
    built = subprocess.run(build, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    messages = [json.loads(line) for line in built.splitlines()]
    [program] = {message["executable"] for message in messages if message.get("executable")}
    return program


class Rank:
    """A process on a host."""

    def __init__(self, command, environment):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=os.environ | environment, stdin=pipe, stdout=pipe, text=True)

    def hear(self):
        """The next line that is for us; the tests' own harness prints others."""
        for line in self.process.stdout:
            if MARK in line:
                return line.partition(MARK)[2].strip()
        raise AssertionError(f"a rank has ended with {self.process.wait()}")

    def tell(self, line):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()


@pytest.mark.full
@pytest.mark.parametrize("streams", [1, 5])
def test_a_ring_over_hosts_sums_exactly(harness, streams):
    count = len(VERSIONS)
    words = [harness, "--exact", "processes::part", "--nocapture", "--test-threads=1"]
    try:
        with contextlib.ExitStack() as stack, Namespaces(count, rate=1000) as spaces:
            common = {"HERRINGBONE_NCCL_STREAMS": str(streams), "NCCL_SOCKET_IFNAME": spaces.interface}
            ranks = []
            for rank, version in enumerate(VERSIONS):
                part = {"NCCL_PLUGIN_TEST_PART": f"ring {version} {rank} {count} 2"}
                ranks.append(Rank(spaces.command(rank, words), common | part))
                stack.callback(ranks[-1].process.kill)
            handles = [rank.hear() for rank in ranks]
            # The address is at byte 16, as wire/greeting.rs says, and an IPv4 address is the end of it.
            addresses = [".".join(map(str, bytes.fromhex(handle)[28:32])) for handle in handles]
            for rank, process in enumerate(ranks):
                process.tell(handles[(rank + 1) % count])
            said = [[process.hear(), process.hear()] for process in ranks]
            statuses = [process.process.wait(PATIENCE_SECONDS) for process in ranks]
            expected = [spaces.address(host) for host in range(count)]
    except NoNamespaces as reason:
        pytest.skip(f"hosts are network namespaces: {reason}")
    assert addresses == expected
    assert said == [["summed", "done"]] * count
    assert statuses == [0] * count
