"""Finds sentences that a reader understands slowly, and counts the words of pages.

Usage: tools/english.py [--count] [--all] [PATH ...], or tools/english.py --words. Standard library only.

A finding is `PATH:LINE: PATTERN -> BETTER`, and the sentence. The last lines count the findings by pattern and by kind of prose, which
tools/prose.py finds. docs/reference/python.md is left out, because it repeats the docstrings. The exit code is 1 if
anything is found. `--all` also shows words that are right in some sentences: a person decides about each.
`--words` prints the words of each page without its code blocks, and of each group with its budget. A number is not a word, nor is a
bar of a table: a word has a letter.
"""

import argparse
import re
import sys
import textwrap
from collections import Counter
from dataclasses import dataclass

import prose
from prose import CODE, KINDS, ROOT

MOST_WORDS = 30
"""A sentence has at most this many words."""


@dataclass(frozen=True)
class Pattern:
    """Words to avoid: their name, how they are found, and what to write. `judged`: a person decides about each."""

    name: str
    expression: str
    better: str
    judged: bool = False

    def finds(self, sentence):
        """Whether a sentence has these words."""
        return re.search(self.expression, sentence, re.IGNORECASE) is not None


NOUN_BEFORE = (
    "the|these|those|all|both|its|their|our|his|no|many|few|several|some|any|other|such|own|of|by|with|from|in|as|and|or|two|three|"
    "element|elements|predecessor|instruction|word|byte|hit|call|message|launch|reference|thread|step|event|line|raw|exact|equal|different|whole|"
    "operation|iteration|parameter|packet|segment|window|row|worker|rank|kernel's|per-rank|retry|error|failure|new|old|last"
)
"""What stands before "counts" if it is a noun."""
OBJECT = r"(?:the|a|an|each|every|how|all|its|their|these|those|them|it|what|(?!as|less|always|across)\w+s)"
"""What stands behind "counts" if it is a verb with an object, which is plain English: "counts the calls"."""
PATTERNS = (
    Pattern("those that", r"\bthose (?:that|which)\b", "the noun: ranks that ..."),
    Pattern("those of", r"\bthose of\b", "the noun again, or a possessive"),
    Pattern("whoever", r"\bwho(?:so)?ever\b", "anyone who; the process that"),
    Pattern("of which", r"\bof (?:which|whom)\b", "a second sentence"),
    Pattern("what is left", r"\bwhat (?:is|was|are) left of\b", "the rest of; the remaining"),
    Pattern(
        "counts (verb)",
        rf"(?<![\w-])(?!(?:{NOUN_BEFORE}) counts)(?:^|[\w'’§)]+ )counts\b(?! (?:of|per|are|were|is|differ|agree|since|as|once|twice|{OBJECT})\b)(?! `)"
        r"|\bcounts? (?:more|for|against|towards?|in place)\b|\b(?:not|that|which) count\b(?! (?:the|of|as|once|twice)\b)",
        "applies; wins; is used; is included",
    ),
    Pattern("speaks of", r"\b(?:speaks?|spoke) of\b", "names; matches; describes"),
    Pattern(
        "unless said", r"\bunless (?:it |they |\w+ )?(?:said|says?|is said|told|named|given)\b", "[default: ...]; by default"
    ),
    Pattern("for ever", r"\bfor ever\b", "forever; without limit"),
    Pattern("anew", r"\banew\b", "again; re-form"),
    Pattern("goes on", r"\b(?:go|goes|went|going|gone) on\b(?! (?:the|a|an|each|one|another|its|that|this)\b)", "continue"),
    Pattern("also if", r"\balso (?:if|without|when|where|while)\b", "even if; even without"),
    Pattern(
        "so many",
        r"\bso (?:many|long|much)\b(?! as\b)(?!(?: [^ .;:]+){0,8} that\b)(?! (?:more|less|faster|slower|larger|smaller|longer)\b)",
        "that many; N ...; after this time",
    ),
    Pattern("mend", r"\bmend(?:s|ed|ing)?\b", "fix; repair"),
    Pattern("overtake", r"\bover(?:take|takes|took|taken|taking)\b", "pass; arrive before"),
    Pattern("Of ...", r"^[^\w§]*(?-i:Of) (?!course\b)", "begin with the subject"),
    Pattern("—", r"[—–](?=\s)|\s[—–]", "a comma, a colon, or two sentences"),
    Pattern("beside", r"\bbeside\b(?! each other)", "next to; compared with; in addition to", True),
    Pattern("says", r"\b(?:says?|said|saying)\b", "show; print; report; mean", True),
    Pattern("may", r"\bmay\b", "can; might", True),
    Pattern("there is", r"^[^\w§]*there (?:is|are|was|were)\b", "begin with the subject", True),
    Pattern("what ...", r"^[^\w§]*What\b(?!.*\?)|[,;:] what\b", "name the thing", True),
    Pattern("among N", r"\bamong \d", "with N ranks", True),
    Pattern("no longer", r"\b(?:no longer|simply|just|nowadays)\b", "leave it out", True),
)
LONG = Pattern(f"above {MOST_WORDS} words", "", "two sentences; a list")


def length(sentence):
    """How many words a sentence has. A run of names or values with commas between them is one."""
    words = [word for word in sentence.split() if re.search(r"\w|§", word)]
    is_part = [word.endswith(",") for word in words]
    count, at = 0, 0
    while at < len(words):
        run = at
        while run < len(words) and is_part[run]:
            run += 1
        at = run + 1 if run - at >= 3 or (run > at and all(CODE in word for word in words[at:run])) else at + 1
        count += 1
    return count


def found_in(text, judged=False):
    """The patterns that a sentence has."""
    found = [pattern for pattern in PATTERNS if (judged or not pattern.judged) and pattern.finds(text)]
    return found + [LONG] * (length(text) > MOST_WORDS)


def findings(paths=(), judged=False):
    """(pattern, sentence) of all that is found in these files."""
    return [(pattern, sentence) for sentence in prose.sentences(paths) for pattern in found_in(sentence.text, judged)]


def table(found):
    """Counts by pattern and kind of prose."""
    counts = Counter((pattern.name, sentence.kind) for pattern, sentence in found)
    patterns = [
        *dict.fromkeys(pattern.name for pattern in (*PATTERNS, LONG) if any((pattern.name, kind) in counts for kind in KINDS))
    ]
    rows = [[name, *(counts[name, kind] for kind in KINDS)] for name in patterns]
    rows.append(["in all", *(sum(row[at] for row in rows) for at in range(1, len(KINDS) + 1))])
    lines = [f"{'pattern':18}" + "".join(f"{kind:>9}" for kind in KINDS) + f"{'in all':>9}"]
    return [*lines, *(f"{row[0]:18}" + "".join(f"{count:9}" for count in (*row[1:], sum(row[1:]))) for row in rows)]


USER, HOW, DECISIONS, RECORD, PROJECT = "user pages", "how it works", "decisions", "record", "project pages"
REFERENCE = "reference pages"
BUDGETS = {USER: 20_000, HOW: 1_000, DECISIONS: 9_000, RECORD: 9_000, PROJECT: 7_000}
"""The most words of a group. Reference pages have no budget: nobody reads them from the beginning to the end."""
PROJECT_PAGES = {"ARCHITECTURE.md", "GLOSSARY.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"}
REFERENCE_PAGES = {
    "docs/troubleshooting.md",
    "docs/faults.md",
    "docs/torch-versions.md",
    "docs/horovod-conformance.md",
    "docs/compression-study.md",
    "docs/figures/index.md",
}


def group(name):
    """The group of a page, by its path."""
    if name in PROJECT_PAGES:
        return PROJECT
    if name == "docs/how-it-works.md":
        return HOW
    if name in REFERENCE_PAGES or name.startswith("docs/reference/"):
        return REFERENCE
    return {"docs/decisions": DECISIONS, "record": RECORD}.get(name.rpartition("/")[0], USER)


def words(text):
    """How many words a page has without its code blocks. A word has a letter."""
    return sum(re.search(r"[^\W\d_]", token) is not None for token in prose.FENCE.sub("", text).split())


def pages():
    """The words of each page, by group and path."""
    found = {name: {} for name in (*BUDGETS, REFERENCE)}
    for path in prose.files():
        name = str(path.relative_to(ROOT))
        if path.suffix == ".md" and name != "python/README.md":
            found[group(name)][name] = words(path.read_text())
    return found


def report_words():
    """Pages by their number of words, and groups with their budgets."""
    groups = pages()
    for name, counts in groups.items():
        for path, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            print(f"{count:7,}  {path}")
        budget = f" of {BUDGETS[name]:,}" if name in BUDGETS else ""
        print(f"{sum(counts.values()):7,}{budget}  {name}\n")
    return any(sum(counts.values()) > BUDGETS.get(name, sum(counts.values())) for name, counts in groups.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files and folders; without any, all of the project")
    parser.add_argument("--count", action="store_true", help="print only the counts")
    parser.add_argument("--all", action="store_true", help="also show patterns that can be right, such as 'says' and 'may'")
    parser.add_argument("--words", action="store_true", help="print the words of pages, and the budgets")
    arguments = parser.parse_args()
    if arguments.words:
        return report_words()
    found = findings(arguments.paths, arguments.all)
    for pattern, sentence in [] if arguments.count else found:
        print(f"{sentence.path}:{sentence.line}: {pattern.name} -> {pattern.better}")
        print(textwrap.indent(textwrap.fill(sentence.text.replace(CODE, "`...`"), 130), "    "))
    print("\n".join(table(found)))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
