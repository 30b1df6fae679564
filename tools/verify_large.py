"""Holds the proofs of thousands of ranks to their limits: 10 s of one core, 1 GiB.

Usage: python3 tools/verify_large.py BINARY. Standard library only. Each case is proven in a process of its own. Where all
ranks do the same, one is proven for all, with any codec; shares make ranks unequal, and these are proven one by one. The
limit is CPU time, because the proof has one thread, and a busy machine must not make it fail.
"""

import os
import subprocess
import sys

SERVED, CODED = "reduction_server", "coded(reduction_server)"
# Algorithm, ranks, reducers.
CASES = [
    ("radix", 4096, 0),
    (SERVED, 4096, 64),
    (SERVED, 4096, 4096),
    ("coded(radix)", 4096, 0),
    (CODED, 4096, 64),
    (CODED, 4096, 4096),
    ("weighted(radix(64,64),16x4095,1)", 4096, 0),
    ("radix", 16384, 0),
    ("radix(128,128)", 16384, 0),
    ("radix(64,16,16)", 16384, 0),
    ("coded(radix)", 16384, 0),
    ("ring", 16384, 0),
    (SERVED, 16384, 16384),
]
MOST_SECONDS = 10
MOST_MIB = 1024


def main(binary):
    """Proves every case and prints its cost."""
    results = [proved(binary, *case) for case in CASES]
    sys.exit(0 if all(results) else 1)


def proved(binary, algorithm, ranks, reducers):
    """Whether one case was proved within the limits."""
    command = [binary, "verify", "--ranks", str(ranks), "--json", "--algorithm", algorithm]
    command += ["--reducers", str(reducers)] if reducers else []
    name = f"{algorithm}, {ranks} ranks" + (f", {reducers} reducers" if reducers else "")
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
    print(f"{name:55} {seconds:6.2f} s of CPU {mib:7.0f} MiB  {', '.join(wrong) or 'within limits'}", flush=True)
    return not wrong


if __name__ == "__main__":
    main(*sys.argv[1:])
