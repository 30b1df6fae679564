"""Facts about the machine and the programs for a record, so that its figures can be judged later."""

import importlib.metadata
import os
import pathlib
import platform
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
CPUS = pathlib.Path("/sys/devices/system/cpu")


def machine():
    """Name and value of each fact, in the order in which a record shows them."""
    return {
        "CPU": cpu_model(),
        "cores": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}",
        "caches": caches(),
        "memory": f"{memory_bytes() / 2**30:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}, {hypervisor()}",
        "load before": f"{os.getloadavg()[0]:.2f}",
        "commit": commit(),
    }


def bullets(facts):
    """These facts as lines of a Markdown list."""
    return "\n".join(f"* {name}: {value}" for name, value in facts.items())


def cpu_model():
    """The model's name, and which vector instructions it has of those that the kernels use."""
    text = read("/proc/cpuinfo")
    name = re.search(r"model name\s*:\s*(.*)", text)
    flags = set((re.search(r"(?:flags|Features)\s*:\s*(.*)", text) or [""])[0].split())
    vectors = [label for flag, label in (("avx2", "AVX2"), ("avx512f", "AVX-512")) if flag in flags]
    return ", ".join([name[1] if name else platform.machine(), *vectors])


def caches():
    """Of the first core: level, kind, size, and how many cores share it."""
    found = []
    for folder in sorted(CPUS.glob("cpu0/cache/index*")):
        level, kind, size, shared = (read(folder / name).strip() for name in ("level", "type", "size", "shared_cpu_list"))
        if kind != "Instruction":
            found.append(f"L{level} {kilobytes(size)} for core {shared}")
    return ", ".join(found) or "unknown"


def kilobytes(size):
    """`2048K` as `2 MiB`."""
    number = int(size.removesuffix("K"))
    return f"{number / 1024:g} MiB" if number >= 1024 else f"{number} KiB"


def memory_bytes():
    """All of it, also what is in use."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def hypervisor():
    """Whether this is a virtual machine: clocks and caches are then shared with strangers."""
    virtual = "hypervisor" in read("/proc/cpuinfo")
    return "a virtual machine" if virtual else "no hypervisor"


def commit():
    """The commit of this tree, and whether files differ from it."""
    name = git("rev-parse", "--short=12", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no")
    return f"{name or 'unknown'}{' and changes' if changed else ''}"


def git(*arguments):
    """git's output; empty if git or the repository is missing."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def versions(environment, names):
    """The releases of the packages `names` that a virtual environment has."""
    paths = [str(path) for path in pathlib.Path(environment).glob("lib/python*/site-packages")]
    found = {}
    for package in importlib.metadata.distributions(path=paths):
        found[package.metadata["Name"].lower().replace("_", "-")] = package.version
    return {name: found[name] for name in names if name in found}


def read(path):
    """A file's text; empty where the system has no such file."""
    try:
        return pathlib.Path(path).read_text()
    except OSError:
        return ""
