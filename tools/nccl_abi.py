"""Compares the numbers of NCCL's interface that the plug-in's tests use with NVIDIA's headers. Standard library and a C compiler only.

Usage: python3 tools/nccl_abi.py FOLDER. The folder has the headers for plug-ins: `plugins/net/example/nccl` of a checkout of NCCL,
which is `ext-net/example/nccl` before NCCL 2.29. The numbers are in crates/nccl-plugin/tests/abi.txt; those of versions that the folder
does not have are left out, and named.
"""

import argparse
import pathlib
import re
import subprocess
import sys

NUMBERS = pathlib.Path(__file__).resolve().parents[1] / "crates" / "nccl-plugin" / "tests" / "abi.txt"
PROGRAM_HEAD = '#include <stddef.h>\n#include "net.h"\n'


def assertion(condition, what):
    return f'_Static_assert({condition}, "{what}");\n'


def assertions(line):
    """What a line of the numbers says, in C."""
    name, value, *fields = line.split()
    if not name.endswith("_t"):
        return assertion(f"{name} == {value}", name)
    offsets = [field.split(":") for field in fields]
    each = [assertion(f"offsetof({name}, {field}) == {at}", f"{name}.{field}") for field, at in offsets]
    return assertion(f"sizeof({name}) == {value}", name) + "".join(each)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    headers = "".join(header.read_text() for header in sorted(folder.glob("*.h")))
    lines = [line for line in NUMBERS.read_text().splitlines() if not line.startswith("#")]
    known = [line for line in lines if re.search(rf"\b{line.split()[0]}\b", headers)]
    program = PROGRAM_HEAD + "".join(assertions(line) for line in known)
    compiler = ["cc", "-std=c11", "-fsyntax-only", "-x", "c", "-I", str(folder), "-"]
    done = subprocess.run(compiler, input=program, text=True)
    if done.returncode == 0:
        print(f"{len(known)} of {len(lines)} lines agree with {folder}")
        for line in lines:
            if line not in known:
                print(f"not there: {line.split()[0]}")
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
