"""Holds the proof of 4,096 ranks to its limits: 10 s of one core, 1 GiB.

Usage: python3 tools/verify_large.py BINARY. Standard library only. Proves flat radix, and reduction_server with few
reducers and with as many as workers, each in a process of its own. CPU time is what counts: the proof has one thread,
and a busy machine is no fault of it.
"""

import os
import subprocess
import sys

CASES = {
    "radix": ["--algorithm", "radix"],
    "reduction_server, 64 reducers": ["--algorithm", "reduction_server", "--reducers", "64"],
    "reduction_server, 4096 reducers": ["--algorithm", "reduction_server", "--reducers", "4096"],
}
MOST_SECONDS = 10
MOST_MIB = 1024


def main(binary):
    """Proves every case and says what it took."""
    results = [proved(binary, name, arguments) for name, arguments in CASES.items()]
    sys.exit(0 if all(results) else 1)


def proved(binary, name, arguments):
    """Whether one case was proved within the limits."""
    command = [binary, "verify", "--ranks", "4096", "--json", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds, mib = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
    faults = {
        f"exit code {process.returncode}": process.returncode != 0,
        f"more than {MOST_SECONDS} s": seconds > MOST_SECONDS,
        f"more than {MOST_MIB} MiB": mib > MOST_MIB,
    }
    wrong = [fault for fault, present in faults.items() if present]
    print(f"{name:32} {seconds:6.2f} s of CPU {mib:7.0f} MiB  {', '.join(wrong) or 'within limits'}", flush=True)
    return not wrong


if __name__ == "__main__":
    main(*sys.argv[1:])
