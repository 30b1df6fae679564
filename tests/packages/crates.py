"""The crates: packed, compiled as crates.io would have them, and their dependencies' licences."""

import functools
import json
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
PUBLISHED = ("herringbone-core", "herringbone-sys", "herringbone", "herringbone-admin", "herringbone-cli")
TARGET = "aarch64-unknown-linux-gnu"
FREE = {
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
}
"""Licences under which a program may be given on as Apache-2.0 OR MIT. What is not here is looked at by a person first."""


class Missing(Exception):
    """What this machine lacks for a step."""


def cargo(*words):
    """What cargo says; raises with it if it fails."""
    done = subprocess.run(["cargo", *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise ValueError(f"cargo {words[0]} ended with {done.returncode}: {done.stdout[-1500:]}")
    return done.stdout


@functools.cache
def dry_run():
    """Packs every crate and compiles what was packed, against the packed ones that it depends on."""
    packages = [word for name in PUBLISHED for word in ("--package", name)]
    return cargo("publish", "--dry-run", "--allow-dirty", "--locked", *packages)


def publish():
    said = dry_run()
    verified = re.findall(r"Verifying (\S+) v", said)
    assert sorted(verified) == sorted(PUBLISHED), said[-1500:]
    lacking = re.findall(r"warning: manifest has no .*", said)
    assert not lacking, lacking
    return f"{', '.join(verified)} are packed, and compile from what was packed"


def yanked():
    """Advisories are kept on a server that is no package registry; what crates.io itself has withdrawn, cargo says."""
    withdrawn = re.findall(r"warning: package `(.*?)` in Cargo.lock is yanked", dry_run())
    assert not withdrawn, f"withdrawn from crates.io: {', '.join(withdrawn)}"
    return "crates.io has withdrawn none; advisories of RustSec are not looked up, which needs another server"


@functools.cache
def metadata():
    return json.loads(
        subprocess.run(
            ["cargo", "metadata", "--format-version=1", "--locked"], cwd=ROOT, stdout=subprocess.PIPE, check=True
        ).stdout
    )


def allowed(expression):
    """Whether a licence expression can be kept by licences of `FREE`: of OR one side, of AND both."""
    words = re.findall(r"\(|\)|[^\s()]+", expression.replace("/", " OR "))
    value, rest = either(words)
    assert not rest, f"{expression!r} is no licence expression"
    return value


def either(words):
    value, words = both(words)
    while words and words[0] == "OR":
        other, words = both(words[1:])
        value = value or other
    return value, words


def both(words):
    value, words = one(words)
    while words and words[0] == "AND":
        other, words = one(words[1:])
        value = value and other
    return value, words


def one(words):
    if words[0] == "(":
        value, words = either(words[1:])
        return value, words[1:]
    if words[1:2] == ["WITH"]:
        return " ".join(words[:3]) in FREE, words[3:]
    return words[0] in FREE, words[1:]


def licences():
    others = [package for package in metadata()["packages"] if package["source"]]
    assert others, "there are dependencies"
    none = [package["name"] for package in others if not package["license"]]
    assert not none, f"without a licence: {', '.join(none)}"
    wrong = [f"{package['name']} ({package['license']})" for package in others if not allowed(package["license"])]
    assert not wrong, f"not free: {', '.join(wrong)}"
    sources = {package["source"] for package in others}
    assert sources == {"registry+https://github.com/rust-lang/crates.io-index"}, f"not from crates.io: {sources}"
    return f"{len(others)} crates, all from crates.io, can be distributed under this project's licences"


def aarch64():
    """Type-checked for the other processor that wheels are made for; it is not run."""
    installed = subprocess.run(["rustup", "target", "list", "--installed"], stdout=subprocess.PIPE, text=True).stdout
    if TARGET not in installed.split():
        raise Missing(f"its standard library is not here: rustup target add {TARGET}")
    cargo("check", "--locked", "--workspace", "--target", TARGET)
    return f"cargo check for {TARGET} passes; nothing was run there"
