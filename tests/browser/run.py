"""Opens the live page in headless Chromium; `make browser` calls it.

Arguments are pytest's. The checks run in an environment of their own, which `make browser-setup` makes. Without it, or without Chromium,
nothing is checked, and the exit code is 77. Screenshots go to target/browser.
"""

import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TOOLS = ROOT / "target" / "browser-tools" / "bin" / "python"
MISSING = 77


def main():
    needed = {"Chromium": shutil.which("chromium"), "playwright": TOOLS.exists()}
    if missing := [name for name, found in needed.items() if not found]:
        print(f"not checked: {' and '.join(missing)} missing; `make browser-setup` installs what is needed")
        sys.exit(MISSING)
    # Jobs are of the environment that calls this, which has herringbone.
    environment = os.environ | {"JOB_PYTHON": sys.executable, "PYTHONPATH": str(HERE)}
    options = ["-q", "-ra", "-p", "opening", "-p", "no:cacheprovider", "-o", "python_files=check_*.py", "--rootdir", str(HERE)]
    sys.exit(subprocess.call([TOOLS, "-m", "pytest", *options, *(sys.argv[1:] or [str(HERE)])], cwd=ROOT, env=environment))


if __name__ == "__main__":
    main()
