"""Checks of the crates that need a tool, a toolchain or a revision that not every machine has.

* `features`: the crates compile without warnings with each of their features off, and their tests pass with all of them off.
* `decoders`: what decodes foreign bytes gets 20,000 damaged words of each kind.
* `fuzz`: the same functions, driven by libFuzzer (nightly and cargo-fuzz): `--seconds` for each, `--only` those with this in
  their names.
* `deny`: licences, duplicates, sources and advisories of all dependencies, by deny.toml (cargo-deny).
* `semver`: the crates keep what a version promises since a revision, `--since`, or the newest tag (cargo-semver-checks).
* `msrv`: the workspace compiles with the oldest compiler that Cargo.toml names (rustup).

`make` has a target for each. The exit code is 77 if a check cannot be made here: then the last line says what is missing, and how
to get it.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MISSING = 77
PUBLISHED = ("herringbone-core", "herringbone-sys", "herringbone", "herringbone-admin", "herringbone-cli")


def run(*command, **environment):
    """Runs it, and says whether it ended well."""
    print("+", " ".join(command), flush=True)
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment).returncode == 0


def asked(*command):
    """What it prints, or nothing if it cannot be run or fails."""
    try:
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except FileNotFoundError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def need(found, what, remedy):
    """Ends if it is not there."""
    if not found:
        print(f"not checked: {what} is missing; {remedy}", flush=True)
        sys.exit(MISSING)


def need_tool(name):
    """A subcommand of cargo."""
    need(asked("cargo", name, "--version"), f"cargo-{name}", f"`cargo install --locked cargo-{name}` installs it")


def features(_):
    """Each of them is left out once, and all of them."""
    right = True
    for name in ("herringbone-core", "herringbone"):
        manifest = (ROOT / "crates" / name.removeprefix("herringbone-") / "Cargo.toml").read_text()
        known = re.findall(r'"([\w-]+)"', re.search(r"^default = \[(.*)\]", manifest, re.MULTILINE)[1])
        for left_out in [[feature] for feature in known] + [known]:
            kept = ",".join(feature for feature in known if feature not in left_out)
            chosen = ["--package", name, "--no-default-features", *(["--features", kept] if kept else [])]
            right &= run("cargo", "clippy", "--quiet", *chosen, "--all-targets", "--", "-Dwarnings")
    return right & run("cargo", "test", "-p", "herringbone-core", "-p", "herringbone", "--no-default-features", "--tests")


def decoders(options):
    chosen = ["--workspace", "--test", "session", "--", "foreign"]
    return run("cargo", "test", *chosen, PROPTEST_CASES=str(options.cases))


def fuzz(options):
    """A decoder after the other; what breaks one is kept, and is to be moved to `testdata/foreign`."""
    need(asked("cargo", "+nightly", "--version"), "Rust's nightly", "`rustup toolchain install nightly` installs it")
    need_tool("fuzz")
    corpus, target = ROOT / "fuzz/corpus", ROOT / "target/fuzz"
    words = ["--test", "session", "--", "--exact", "foreign::undamaged_words_are_read"]
    if not run("cargo", "test", "--quiet", "--workspace", *words, CORPUS=str(corpus)):
        return False
    broken = []
    for folder in sorted(corpus.iterdir()):
        if options.only not in folder.name:
            continue
        found = target / "found" / folder.name
        found.mkdir(parents=True, exist_ok=True)
        started = ["cargo", "+nightly", "fuzz", "run", "--target-dir", str(target), "decoder", str(folder)]
        limits = [f"-max_total_time={options.seconds}", f"-artifact_prefix={found}/", "-timeout=10", "-print_final_stats=1"]
        if not run(*started, "--", *limits, DECODER=folder.name):
            broken.append(f"{folder.name}: see {found}, and keep what breaks it in testdata/foreign/{folder.name}")
    print(*broken, sep="\n")
    return not broken


def deny(_):
    need_tool("deny")
    return run("cargo", "deny", "--workspace", "check")


def semver(options):
    need_tool("semver-checks")
    since = options.since or asked("git", "describe", "--tags", "--abbrev=0").strip()
    need(since, "a release to compare with", "ARGS='--since REVISION' names one")
    chosen = [word for name in PUBLISHED for word in ("--package", name)]
    return run("cargo", "semver-checks", "--baseline-rev", since, *chosen)


def msrv(_):
    version = re.search(r'^rust-version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
    known = re.findall(r"^(\d+\.\d+)\S*", asked("rustup", "toolchain", "list"), re.MULTILINE)
    need(version in known, f"Rust {version}", f"`rustup toolchain install {version} --profile minimal` installs it")
    toolchain = f"+{version}" if asked("cargo", f"+{version}", "--version") else f"+{version}.0"
    return run("cargo", toolchain, "check", "--workspace", "--locked", CARGO_TARGET_DIR=str(ROOT / "target/msrv"))


def main():
    checks = {check.__name__: check for check in (features, decoders, fuzz, deny, semver, msrv)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check", choices=checks)
    parser.add_argument("--cases", type=int, default=20_000, help="damaged words for each decoder")
    parser.add_argument("--seconds", type=int, default=60, help="of fuzzing, for each decoder")
    parser.add_argument("--only", default="", help="decoders to fuzz: those with this in their names")
    parser.add_argument("--since", help="a revision")
    options = parser.parse_args()
    sys.exit(0 if checks[options.check](options) else 1)


if __name__ == "__main__":
    main()
