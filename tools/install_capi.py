"""Installs libherringbone.so, its headers and its pkg-config file; `make capi` calls it. Standard library only.

Usage: python3 tools/install_capi.py LIBRARY PREFIX. The library is what cargo has built; PREFIX is a folder, which is made if
it is missing. With `--destdir FOLDER`, for packages, files are written below that folder, but still contain only the prefix.
With `--strip` the library has no line numbers for debuggers; this needs binutils' `strip`.
"""

import argparse
import pathlib
import re
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]
CRATE = ROOT / "crates" / "capi"
PKG_CONFIG = """\
prefix={prefix}
includedir=${{prefix}}/include
libdir=${{prefix}}/lib

Name: herringbone
Description: All-reduce for data-parallel training, with the same bits every time
URL: https://github.com/herringbone-rs/herringbone
Version: {version}
Cflags: -I${{includedir}}
Libs: -L${{libdir}} -lherringbone
"""


SEARCHED = ("/usr", "/usr/local")
"""Prefixes where pkg-config and the loader look by themselves."""


def install(library, prefix, destdir=None, is_stripped=False):
    """Puts all files there, over older ones, and returns the folder."""
    prefix = pathlib.Path(prefix).resolve()
    root = pathlib.Path(destdir).resolve() / prefix.relative_to("/") if destdir else prefix
    version = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
    soname = re.search(r'"(libherringbone\.so\.\d+)"', (CRATE / "build.rs").read_text())[1]
    (root / "lib" / "pkgconfig").mkdir(parents=True, exist_ok=True)
    shutil.copytree(CRATE / "include", root / "include", copy_function=shutil.copyfile, dirs_exist_ok=True)
    (root / "lib" / "pkgconfig" / "herringbone.pc").write_text(PKG_CONFIG.format(prefix=prefix, version=version))
    names = [f"libherringbone.so.{version}", soname, "libherringbone.so"]
    for name in names:
        # A program that runs keeps the file that it has mapped.
        (root / "lib" / name).unlink(missing_ok=True)
    shutil.copyfile(library, root / "lib" / names[0])
    if is_stripped:
        subprocess.run(["strip", "--strip-debug", root / "lib" / names[0]], check=True)
    for target, name in zip(names, names[1:]):
        (root / "lib" / name).symlink_to(target)
    return root


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("prefix")
    parser.add_argument("--destdir")
    parser.add_argument("--strip", action="store_true", help="leave out line numbers for debuggers")
    options = parser.parse_args()
    root = install(options.library, options.prefix, options.destdir, options.strip)
    print(f"libherringbone is installed below {root}")
    if options.destdir is None and str(root) not in SEARCHED:
        print(f"To compile and run programs: export PKG_CONFIG_PATH={root}/lib/pkgconfig LD_LIBRARY_PATH={root}/lib")


if __name__ == "__main__":
    main()
