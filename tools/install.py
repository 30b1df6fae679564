"""Installs a list of requirements into the environment whose Python runs this, with torch's build for CPUs if there is one.

Usage: PYTHON tools/install.py REQUIREMENTS. Standard library and pip only. The package index that pip has by default gives
torch with its GPU libraries: 6 GB. If an index that pip is configured for (PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS, pip.conf) has
builds whose version ends in "+cpu", as torch's own has, and this machine has no NVIDIA driver, the newest of these that is new
enough is taken. A torch that is there stays.
"""

import importlib.util
import pathlib
import re
import subprocess
import sys

DRIVER = pathlib.Path("/proc/driver/nvidia")
PIP = [sys.executable, "-m", "pip"]


def for_cpus(oldest):
    """The newest version of torch's builds for CPUs that pip finds and that is not older than `oldest`; else None."""
    found = subprocess.run([*PIP, "index", "versions", "torch"], capture_output=True, text=True).stdout
    builds = re.findall(r"[ ]((\d+)\.(\d+)[\w.]*\+cpu)", found)
    new_enough = [(int(major), int(minor), version) for version, major, minor in builds if (int(major), int(minor)) >= oldest]
    # pip names the newest first.
    return new_enough[0][2] if new_enough else None


def main():
    requirements = pathlib.Path(sys.argv[1])
    wanted = re.search(r"^torch>=(\d+)\.(\d+)$", requirements.read_text(), re.MULTILINE)
    command = [*PIP, "install", "--requirement", requirements]
    if wanted and not DRIVER.exists() and importlib.util.find_spec("torch") is None:
        version = for_cpus((int(wanted[1]), int(wanted[2])))
        print(f"torch: {version or 'no index of pip has a build for CPUs, so the one that it gives is taken'}", flush=True)
        if version and subprocess.run([*command, f"torch=={version}"]).returncode == 0:
            return 0
    return subprocess.run(command).returncode


if __name__ == "__main__":
    sys.exit(main())
