"""The English of pages, help, texts and comments: each pattern is found, its near miss is not, and the project has none left."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import english
import prose

SENTENCES = {
    "those that": ("Those that are left continue.", "Those ranks that are left continue."),
    "those of": ("Its sums are those of Gloo.", "Take those, of course, and no others."),
    "whoever": ("Whoever calls first waits.", "The process that calls first waits."),
    "of which": ("It has four ports, of which one is slow.", "It shows which port is slow."),
    "what is left": ("It sums what is left of the buffer.", "It sums the part that is left."),
    "counts (verb)": ("The first that answers counts.", "It compares the instruction counts of both."),
    "speaks of": ("The first rule that speaks of a call wins.", "Speak to the maintainers of the page."),
    "unless said": ("One host unless said.", "It fails unless the token is set."),
    "for ever": ("A receive can wait for ever.", "It waits for every rank."),
    "anew": ("They form the group anew.", "They form a new group."),
    "goes on": ("Training goes on with the same bits.", "The message goes on the wire first."),
    "also if": ("It works, also if a rank dies.", "It also works if a rank dies."),
    "so many": ("It waits for so long.", "It has so many ranks that it needs a tree."),
    "mend": ("It prints the command that mends it.", "It prints a recommended command."),
    "overtake": ("An urgent call overtakes others.", "An urgent call takes over the link."),
    "Of ...": ("Of two ranks the lower one sends.", "Of course the lower rank sends."),
    "—": ("It is fast — and small.", "It is fast-moving, and small."),
    "beside": ("Its speed beside Gloo is shown.", "The besieged port is shown."),
    "says": ("The log says why.", "The essays show why."),
    "may": ("A reducer may die.", "A maybe is no answer."),
    "there is": ("There is one case.", "In one case there is no answer."),
    "what ...": ("What it sends is coded.", "What does it send?"),
    "among N": ("Among 4,096 ranks it is fast.", "It is fast among many ranks."),
    "no longer": ("It is no longer used.", "It takes longer."),
}
"""Of each pattern a sentence that has it, and one that only seems to."""
NOUNS = (
    "The counts are equal.",
    "It adds the element counts and displacements.",
    "Instruction counts differ by machine.",
    "A schedule counts chunks, not bytes.",
    "It counts the calls of each rank.",
    "Each push counts once.",
    "A rank that left counts as dead.",
    "They are read from `counts` of the file.",
)
VERBS = (
    "Of several addresses the first that answers counts.",
    "Rank 0's choice counts.",
    "A rule counts more than a variable.",
    "Only the fallbacks do not count where rank 0 is at loopback.",
    "Failures count against the limit.",
)


def names(text):
    """The names of the patterns in a sentence of Markdown."""
    return [pattern.name for pattern in english.found_in(prose.plain(text), judged=True)]


def test_each_pattern_has_sentences():
    assert list(SENTENCES) == [pattern.name for pattern in english.PATTERNS]


@pytest.mark.parametrize("name", SENTENCES)
def test_a_pattern_is_found_and_its_near_miss_is_not(name):
    wrong, near = SENTENCES[name]
    assert name in names(wrong), wrong
    assert name not in names(near), near


def test_counts_is_found_as_a_verb_without_an_object():
    assert [text for text in NOUNS if "counts (verb)" in names(text)] == []
    assert [text for text in VERBS if "counts (verb)" not in names(text)] == []


def test_contributing_lists_the_patterns():
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("\n## English\n")[2].partition("\n## ")[0]
    names = [pattern.name.partition(" (")[0] for pattern in english.PATTERNS if not pattern.judged]
    assert [name for name in names if f"`{name}" not in section] == []
    assert f"above {english.MOST_WORDS} words" in section


def test_long_sentences_are_found():
    thirty = " ".join(["word"] * 30)
    assert names(f"{thirty}.") == [] and names(f"{thirty} more.") == ["above 30 words"]
    assert english.length("Its names are `a`, `b`, `c`, `d` and `e` on all ranks.") == 9, "a list of names is as long as a word"
    assert english.length("names: radix, ring, tree, one_shot, star or chain") == 4


def parts(found):
    """Sentences of passages: (line, text)."""
    passages = [prose.Passage(prose.PAGE, "page.md", line, text) for line, text in found]
    return [(sentence.line, sentence.text) for passage in passages for sentence in prose.split(passage)]


def test_pages_are_read_without_code_and_addresses():
    page = """# A *title*
A first sentence ends, e.g. here. The second
has [words of a link](https://example.org/those-that) and `those that` in
code. torch's begins small.

* An item

  ```sh
  herringbone whoever
  ```
* another
<!-- whoever reads this -->

| head | `x` |
|---|---|
| a cell. Another one | whoever |
"""
    assert parts(prose.markdown(page)) == [
        (1, "A title"),
        (2, "A first sentence ends, e.g. here."),
        (2, "The second has words of a link and § in code."),
        (4, "torch's begins small."),
        (6, "An item"),
        (11, "another"),
        (14, "head"),
        (14, "§"),
        (16, "a cell."),
        (16, "Another one"),
        (16, "whoever"),
    ]


def test_help_is_read_by_its_columns():
    page = """```text
Say how long it takes. It is
exact.

Usage: herringbone simulate [OPTIONS]

Commands:
  verify  Prove schedules for every
          size
  show    Print one

Options:
      --ranks <N>
          Workers; as many as
          there are

          [default: 4,64K of those that]
  -h, --help     Print help
```
"""
    assert parts(prose.helps(page)) == [
        (2, "Say how long it takes."),
        (2, "It is exact."),
        (7, "Commands:"),
        (8, "Prove schedules for every size"),
        (10, "Print one"),
        (12, "Options:"),
        (14, "Workers; as many as there are"),
        (18, "Print help"),
    ]


RUST = """//! A module that says so.

/// A public item that has words.
///
/// ```
/// let whoever = 1;
/// ```
#[derive(Debug)]
pub enum Kind {
    /// A variant of a public item.
    One,
}

/// A private item.
struct Hidden {
    /// A public field that counts.
    pub field: char,
}

fn texts<'a>() {
    fail("rank {rank} has \\"left\\" the \\
          group of {}\\nand {{so}} on it goes");
    fail(r"A raw text \\ has five words.", '"', "two words");
    // "a comment is no text of the program"
}

#[cfg(test)]
mod tests {
    const X: &str = "what is in tests is left out";
}
"""


def test_rust_is_read_by_its_texts_and_public_comments():
    found = [(kind, *part) for kind, line, text in prose.rust(RUST) for part in parts([(line, text)])]
    assert found == [
        (prose.TEXT, 21, 'rank § has "left" the group of §'),
        (prose.TEXT, 22, "and so on it goes"),
        (prose.TEXT, 23, "A raw text \\ has five words."),
        (prose.COMMENT, 1, "A module that says so."),
        (prose.COMMENT, 3, "A public item that has words."),
        (prose.COMMENT, 10, "A variant of a public item."),
        (prose.COMMENT, 16, "A public field that counts."),
    ]


PYTHON = '''"""A module: its text."""

__all__ = ["shown", "LIMIT"]

LIMIT = 3
"""A limit of the module."""
OTHER = 4
"""No public text."""


def shown(ranks):
    """Do it::

        whoever = those_that()

    Args:
        ranks: how many. There are
            no others.

    Raises:
        ValueError: it cannot.
    """
    raise ValueError(f"rank {ranks} cannot do this: " "call it again" + "two words")


def hidden():
    """No public text, too."""
'''


def test_python_is_read_by_its_texts_and_public_docstrings():
    found = [(kind, *part) for kind, line, text in prose.python(PYTHON, True) for part in parts([(line, text)])]
    assert found == [
        (prose.TEXT, 23, "rank § cannot do this: call it again"),
        (prose.COMMENT, 1, "A module: its text."),
        (prose.COMMENT, 6, "A limit of the module."),
        (prose.COMMENT, 12, "Do it:"),
        (prose.COMMENT, 17, "how many."),
        (prose.COMMENT, 17, "There are no others."),
        (prose.COMMENT, 21, "it cannot."),
    ]
    assert [kind for kind, *_ in prose.python(PYTHON, False)] == [prose.TEXT]


def test_headers_are_read_by_their_comments():
    header = "/* A first one.\n *\n *     code(whoever);\n *\n * Another one. */\nint x; /* short */\n"
    assert parts(prose.header(header)) == [(1, "A first one."), (5, "Another one."), (6, "short")]


def test_all_kinds_of_prose_are_found():
    found = list(prose.sentences())
    counts = {kind: sum(sentence.kind == kind for sentence in found) for kind in prose.KINDS}
    assert all(count > 300 for count in counts.values()), counts
    assert not any("/tests/" in sentence.path for sentence in found)


def test_the_project_has_none():
    counts = dict.fromkeys(prose.KINDS, 0)
    for _, sentence in english.findings():
        counts[sentence.kind] += 1
    assert not [f"{kind}: {count}" for kind, count in counts.items() if count], "tools/english.py shows them"


def test_groups_of_pages_keep_their_budgets():
    totals = {name: sum(counts.values()) for name, counts in english.pages().items()}
    assert all(totals.values()) and set(english.BUDGETS) == set(totals) - {english.REFERENCE}
    over = {name: total for name, total in totals.items() if total > english.BUDGETS.get(name, total)}
    assert over == {}, "tools/english.py --words shows the pages"


def test_code_numbers_and_bars_are_not_counted_as_words():
    assert (
        english.words(
            "one two\n\n```sh\nthree four\n```\n* five\n\n  ```text\n  six\n  ```\n| a | b |\n|---|---|\n1.5 x 3 `c_1`\n"
        )
        == 7
    )


def test_the_tool_prints_findings_and_counts(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Title\nIt is fine.\nWhoever reads\nthis waits for ever.\n")
    run = subprocess.run([sys.executable, ROOT / "tools" / "english.py", page], text=True, capture_output=True)
    assert run.returncode == 1
    assert f"{page}:3: whoever -> anyone who; the process that\n    Whoever reads this waits for ever.\n" in run.stdout
    counts = {" ".join(words[:-5]): words[-5:] for words in map(str.split, run.stdout.splitlines()) if words[-1].isdecimal()}
    assert counts == {"whoever": list("10001"), "for ever": list("10001"), "in all": list("20002")}
    page.write_text("It is fine, too.\n")
    assert subprocess.run([sys.executable, ROOT / "tools" / "english.py", page], capture_output=True).returncode == 0
