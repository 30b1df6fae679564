"""What pages promise beside their code: links to headings, generated pages, an entry for each error."""

import ast
import re
import subprocess
import sys
import pathlib

import pytest
from test_docs import BINARY, BLOCK, PAGES, ROOT

HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
TO_HEADING = re.compile(r"\]\(([^)\s#]*)#([^)\s]+)\)")
LIST_OR_TABLE = re.compile(r"\* |- |\d+\. |\|")
GENERATED = ("docs/reference/commands.md", "docs/reference/python.md")


def without_blocks(text):
    """A page's text without its code."""
    return BLOCK.sub("", text)


def anchor(heading):
    """The name that GitHub and the site give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(page):
    """The headings that links to a page can name."""
    return {anchor(heading) for heading in HEADING.findall(without_blocks(page.read_text()))}


def lost(page, text):
    """The links in `text`, which lies at `page`, to headings that are not there."""
    links = [(link, part) for link, part in TO_HEADING.findall(without_blocks(text)) if not re.match(r"[a-z]+:", link)]
    targets = [((page.parent / link).resolve() if link else page, part) for link, part in links]
    return [f"{path.name}#{part}" for path, part in targets if path.suffix == ".md" and part not in anchors(path)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_headings_find_them(page):
    assert lost(page, page.read_text()) == []


def test_a_lost_heading_is_found():
    text = "[a](docs/start.md#2-write-trainpy) [b](docs/start.md#no) [c](#neither) [d](https://example.org/#x)"
    assert lost(ROOT / "README.md", text) == ["start.md#no", "README.md#neither"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_list_or_table_stands_apart(page):
    """GitHub shows a list that follows a line of text; the site would make one paragraph of both."""
    lines = ["", *without_blocks(page.read_text()).splitlines()]
    begins = (re.compile(rf"{LIST_OR_TABLE.pattern}|#|  |<!--"), LIST_OR_TABLE)
    wrong = [
        after for before, after in zip(lines, lines[1:]) if begins[1].match(after) and before and not begins[0].match(before)
    ]
    assert wrong == []


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_reference_is_what_the_programs_say(tmp_path):
    tool = ROOT / "tools" / "reference.py"
    subprocess.run([sys.executable, tool, BINARY, tmp_path], check=True)
    for name in GENERATED:
        written = (tmp_path / pathlib.Path(name).name).read_text()
        assert (ROOT / name).read_text() == written, f"{name} is old: `make reference` writes it again"


def test_the_reference_has_verbs_below_verbs():
    """Each verb whose `--help` lists verbs has their options below it; the functions of torch's timelines are there, too."""
    commands, python = ((ROOT / name).read_text() for name in GENERATED)
    for heading in ("### herringbone trace merge", "### herringbone trace report", "### herringbone trace check"):
        _, _, after = commands.partition(f"\n{heading}\n")
        assert "\nOptions:\n" in after.partition("\n#")[0], heading
    for name in ("start_timeline", "stop_timeline"):
        assert f"\n### herringbone.torch.{name}\n" in python, name


def test_the_pictures_are_what_the_schedules_say(tmp_path):
    subprocess.run([sys.executable, ROOT / "tools" / "pictures.py", BINARY, tmp_path], check=True)
    drawn = {path.name: path.read_text() for path in tmp_path.glob("*.svg")}
    kept = {path.name: path.read_text() for path in (ROOT / "docs" / "pictures").glob("*.svg")}
    assert drawn == kept, "the pictures are old: `make reference` draws them again"
    shown = "".join(page.read_text() for page in PAGES)
    assert [name for name in drawn if f"pictures/{name}" not in shown] == []


JOB = "--workers 8 --worker-gbps 100 --reducer-gbps 32 --bytes 1.3G --step-ms 900"
DRAWN = {
    "step": f"advise {JOB}",
    "price": f"advise {JOB} --price-worker 30 --price-reducer 0.6",
    "flat": f"advise {JOB} --most 1 --overlap 1",
    "simulate": "simulate --algorithm ring --ranks 3 --bytes 1M",
    "roofline": "roofline --algorithm radix --per-host 2 --gbps 100",
    "coded": "roofline --algorithm radix --per-host 2 --gbps 1 --compression int8",
    "topo": "topo examples/dgx1.txt",
    "show": "show --algorithm doubling --ranks 8",
    "show-all": "show --algorithm one_shot --ranks 7",
    "show-served": "show --algorithm mixed --ranks 5 --reducers 3",
    "show-chunks": "show --algorithm radix --ranks 11",
    "show-moved": "show --algorithm one_shot --ranks 5 --collective all_to_all",
    "show-one": "show --algorithm radix --ranks 1",
}
"""Commands that draw what `--svg` names."""


@pytest.mark.parametrize("name", DRAWN)
def test_pictures_of_commands_keep_the_rules(name, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "bench"))
    import picture_rules

    file = tmp_path / "picture.svg"
    subprocess.run([BINARY, *DRAWN[name].split(), "--svg", file], cwd=ROOT, check=True, capture_output=True)
    picture_rules.check(file.read_text())


def test_the_picture_of_shards_has_the_workers_that_carry_them(monkeypatch):
    from herringbone._herringbone import aligned_shards

    monkeypatch.setattr(sys, "path", [str(ROOT / "tools"), str(ROOT / "bench"), *sys.path])
    from shards_picture import runs

    for shards in (1, 6, 8, 13, 16):
        for workers in range(1, shards + 2):
            lengths = [last - first for first, last in runs(shards, workers)]
            assert lengths + [0] * (workers - len(lengths)) == aligned_shards(shards, workers)


def troubleshooting():
    return (ROOT / "docs" / "troubleshooting.md").read_text()


def test_each_error_has_a_heading():
    module = ast.parse((ROOT / "python" / "herringbone" / "errors.py").read_text())
    errors = {item.name for item in module.body if isinstance(item, ast.ClassDef)}
    headings = {heading for heading in HEADING.findall(troubleshooting()) if heading.endswith("Error")}
    assert len(errors) > 10 and headings - {"ImportError"} == errors


def test_messages_are_quoted_as_they_are():
    sources = ("crates/*/src/**/*.rs", "python/herringbone/**/*.py", "python/src/*.rs")
    text = "".join(path.read_text() for place in sources for path in sorted(ROOT.glob(place)))
    text = re.sub(r"^\s*//.*\n", "", text, flags=re.MULTILINE)  # a comment is no message
    text = re.sub(r'\\\n\s*|"\s*\n\s*f?"', "", text)  # strings that go on in the next line
    quoted = re.findall(r"^\| `([^`]+)` \|", troubleshooting(), re.MULTILINE)
    assert len(quoted) > 40 and [words for words in quoted if words not in text] == []


@pytest.mark.full
def test_the_figures_of_articles_are_what_simulations_say(tmp_path):
    """All of them take some minutes, so this is not for every change."""
    subprocess.run([BINARY, "figures", tmp_path], check=True, stdout=subprocess.DEVNULL)
    written, kept = (
        {path.name: path.read_text() for path in folder.iterdir()} for folder in (tmp_path, ROOT / "docs" / "figures")
    )
    assert written == kept, "the figures are old: `make figures` writes them again"
