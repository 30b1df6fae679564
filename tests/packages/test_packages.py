"""What judges the packages judges right. `make packages` makes and tries them."""

import importlib.util
import pathlib

import pytest

HERE = pathlib.Path(__file__).resolve().parent
SPEC = importlib.util.spec_from_file_location("crates", HERE / "crates.py")
crates = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(crates)


@pytest.mark.parametrize(
    "expression",
    ["MIT", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "(MIT OR Apache-2.0) AND Unicode-3.0", "Apache-2.0 WITH LLVM-exception"],
)
def test_free_licences_are_allowed(expression):
    assert crates.allowed(expression)


@pytest.mark.parametrize("expression", ["GPL-3.0", "MIT AND GPL-3.0", "(GPL-2.0 OR AGPL-3.0) AND MIT", "GPL-2.0 WITH Classpath"])
def test_others_are_not(expression):
    assert not crates.allowed(expression)


def test_what_is_no_expression_is_refused():
    with pytest.raises(AssertionError, match="no licence expression"):
        crates.allowed("MIT Apache")


def test_all_crates_that_may_be_published_are():
    members = [package for package in crates.metadata()["packages"] if not package["source"]]
    published = {package["name"] for package in members if package["publish"] != []}
    assert published == set(crates.PUBLISHED)
