"""Finds the prose of the project: sentences of pages, of `--help`, of texts in programs, and of documentation comments.

Standard library only, so that it runs before anything is installed. `tools/english.py` checks what this module finds.
"""

import ast
import inspect
import pathlib
import re
from dataclasses import dataclass

from lines import TESTS, UNIT_TESTS

ROOT = pathlib.Path(__file__).resolve().parents[1]
PLACES = (
    "*.md",
    "docs/**/*.md",
    "record/*.md",
    "examples/*.md",
    "python/*.md",
    "crates/*/src/**/*.rs",
    "crates/capi/include/**/*.h",
    "python/src/**/*.rs",
    "python/herringbone/**/*.py",
    "python/herringbone/**/*.pyi",
    "bench/*.py",
    "demo/*.py",
    "examples/*.py",
    "tools/*.py",
)
"""The files with prose. Texts in tests are only for their authors."""
FROM_DOCSTRINGS = "docs/reference/python.md"
FROM_HELP = "docs/reference/commands.md"
PAGE, HELP, TEXT, COMMENT = "page", "help", "text", "comment"
KINDS = {
    PAGE: "prose of Markdown pages",
    HELP: "`--help`, by docs/reference/commands.md",
    TEXT: "strings of programs: errors, warnings, logs, output",
    COMMENT: "documentation comments of public items",
}
CODE = "§"
"""Stands for inline code, an address or the value of a placeholder."""
BREAK = "\f"
"""Stands where a line break of a text ends a sentence."""
LEAST_WORDS = 4
"""A string of fewer words is no sentence."""
FENCE = re.compile(r"^ *(```|~~~)[^\n]*\n.*?^ *\1[ \t]*$", re.MULTILINE | re.DOTALL)
SENTENCE_END = re.compile(
    r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!vs\.)(?<! al\.)(?<!cf\.)(?<!etc\.)(?<!\.\.\.)[\"')\]]*\s+(?=\S)"
    r"|(?<=\.\.\.)\s+(?=[A-Z])|\f"
)


@dataclass(frozen=True)
class Passage:
    """Text that is read in one go: a paragraph, an item, a cell, a string. It has the line breaks of the file."""

    kind: str
    path: str
    line: int
    text: str


@dataclass(frozen=True)
class Sentence:
    """A sentence, with one space between words, and the line on which it begins."""

    kind: str
    path: str
    line: int
    text: str


def files(paths=()):
    """The files that have prose: all, or these and the ones below these folders."""
    found = {path for place in PLACES for path in ROOT.glob(place)}
    given = [pathlib.Path(path).resolve() for path in paths]
    if given:
        found = {path for path in found if any(path.is_relative_to(place) for place in given)} | {
            path for path in given if path.is_file()
        }
    return sorted(found)


def sentences(paths=()):
    """All sentences of these files."""
    for path in files(paths):
        for passage in passages(path):
            yield from split(passage)


def passages(path):
    """The passages of one file, by the kind of its name."""
    name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
    if name == FROM_DOCSTRINGS or (path.suffix != ".md" and TESTS.search(name)):
        return []
    text = path.read_text()
    if path.suffix == ".md":
        found = [(PAGE, *part) for part in markdown(text)]
        if name == FROM_HELP:
            found += [(HELP, *part) for part in helps(text)]
    elif path.suffix == ".rs":
        found = [] if is_test_module(path) else list(rust(text, name.startswith("python/")))
    elif path.suffix == ".h":
        found = [(COMMENT, *part) for part in header(text)]
    else:
        found = python(text, name.startswith(("python/", "examples/")))
    return [Passage(kind, name, line, words) for kind, line, words in found]


def split(passage):
    """The sentences of a passage."""
    start = 0
    ends = [(match.start(), match.end()) for match in SENTENCE_END.finditer(passage.text)]
    for stop, following in [*ends, (len(passage.text), len(passage.text))]:
        text = passage.text[start:stop]
        begin = start + len(text) - len(text.lstrip())
        line = passage.line + passage.text.count("\n", 0, begin)
        if text.strip():
            yield Sentence(passage.kind, passage.path, line, " ".join(text.split()))
        start = following


def hidden(text, pattern, flags=0):
    """The text with `CODE` in place of what the pattern finds; line breaks stay."""
    return re.sub(pattern, lambda match: CODE + "\n" * match[0].count("\n"), text, flags=flags)


def plain(text):
    """Markdown's text without its marks: code and addresses hidden, links by their words."""
    text = hidden(text, r"(`+)(?:(?!\n\n).)+?\1", re.DOTALL)
    text = re.sub(r"!?\[((?:[^][]|\[[^][]*\])*)\]\([^()\s]*(?:\([^()\s]*\)[^()\s]*)?\)", r"\1", text)
    text = re.sub(r"\[([^][]*)\]\[[^][]*\]", r"\1", text)
    text = hidden(text, r"<?\bhttps?://[^\s>)]*>?")
    text = hidden(text, r"</?[a-z][^>\n]*>")
    return re.sub(r"\*\*|(?<![\w*])[*_](?=\S)|(?<=\S)[*_](?![\w*])", "", text)


BULLET = re.compile(r" *(?:[*+-]|\d+[.)]) +")


def markdown(text, first=1):
    """Line and text of each paragraph, item, heading and cell of Markdown."""

    def blank(match):
        return "\n" * match[0].count("\n")

    text = re.sub(r"<!--.*?-->", blank, FENCE.sub(blank, text), flags=re.DOTALL)
    open_line, lines = first, []
    for number, line in enumerate([*text.split("\n"), ""], first):
        is_row, bullet = line.lstrip().startswith("|"), BULLET.match(line)
        if lines and (not line.strip() or is_row or bullet or line.startswith("#")):
            yield open_line, plain("\n".join(lines))
            lines = []
        if is_row:
            cells = re.split(r"(?<!\\)\|", plain(line))
            yield from ((number, cell) for cell in cells if re.search(r"\w|§", cell))
        elif line.startswith("#"):
            yield number, plain(line.lstrip("#"))
        elif line.strip():
            if not lines:
                open_line = number
            lines.append(line[bullet.end() :] if bullet else line.lstrip("> "))


COLUMNS = re.compile(r"^( +)(\S+(?: \S+)*) {2,}(?=\S)")
NOTES = re.compile(r"\[(?:default|possible values|aliases|env|short aliases)[^\]]*\]", re.IGNORECASE)


def helps(text):
    """Line and text of each passage of `--help`: by paragraphs, and by columns where options or verbs are listed."""
    for block in re.finditer(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        first = text.count("\n", 0, block.start(1)) + 1
        column, open_line, lines = 0, first, []
        for number, line in enumerate([*block[1].split("\n"), ""], first):
            columns = COLUMNS.match(line)
            indent = len(line) - len(line.lstrip())
            continues = line.strip() and indent == column and not columns and not line.startswith("Usage:")
            if lines and not continues:
                yield open_line, plain(NOTES.sub("", "\n".join(lines)))
                lines = []
            if not line.strip() or line.startswith("Usage:") or re.match(r" +(-|herringbone |\$ |<)", line[: indent + 13]):
                column = columns.end() if columns and line.strip() else indent
                if columns and line.strip():
                    open_line, lines = number, [line[columns.end() :]]
                continue
            if not lines:
                open_line, column = number, columns.end() if columns else indent
            lines.append(line[columns.end() :] if columns else line)


RUST = re.compile(
    r'(?P<comment>//[^\n]*)|/\*.*?\*/|b?r(?P<marks>#*)"(?P<raw>.*?)"(?P=marks)|b?"(?P<plain>(?:[^"\\]|\\.)*)"'
    r"|'(?:[^'\\\n]|\\(?:u\{[^}]*\}|x..|.))'",
    re.DOTALL,
)
ESCAPES = re.compile(r"\\(\n\s*|u\{[^}]*\}|x[0-9a-fA-F]{2}|.)", re.DOTALL)


def unescaped(match):
    """The character for an escape in a string of Rust, as far as sentences need it."""
    escape = match[1]
    if escape.startswith("\n"):
        return "\n"
    return {"n": BREAK, "t": " ", "r": "", "0": "", '"': '"', "'": "'", "\\": "\\"}.get(escape[0], "'")


def filled(text):
    """A format string whose placeholders have values."""
    text = text.replace("{{", "").replace("}}", "")
    return hidden(hidden(text, r"\{[^{}\n]*\}"), r"%[-+#0-9.]*[sdrgfx]\b")


def is_prose(text):
    """Whether a string has a sentence, and is no command, pattern or picture."""
    words = re.findall(r"(?<![\w<-])[A-Za-z][A-Za-z']+(?![\w=>])", text)
    return len(words) >= LEAST_WORDS and not re.search(
        r"<(?:svg|div|text|path|style|script)\b|\bfunction\b|\(\?|^import \w", text
    )


def without_unit_tests(text):
    """Rust without the module of tests at its end."""
    found = UNIT_TESTS.search(text)
    return text[: found.start()] if found else text


def is_test_module(path):
    """Whether the module above compiles this file for tests only."""
    above = [path.parent.with_suffix(".rs"), path.parent / "lib.rs", path.parent / "main.rs"]
    pattern = rf"^#\[cfg\(test\)\]\n(?:#\[[^\n]*\n)*(?:pub(?:\([^)]*\))? )?mod {path.stem};"
    return any(file.exists() and re.search(pattern, file.read_text(), re.MULTILINE) for file in above)


def rust(text, exported=False):
    """Kind, line and text of strings and of documentation comments of Rust; `exported`: all are of public items."""
    text = without_unit_tests(text)
    for match in RUST.finditer(text):
        raw, string = match["raw"], match["plain"]
        if raw is None and string is None:
            continue
        string = re.sub(r"(?<!\\)\n(?=\s|[*|\d-])", BREAK, raw if string is None else string)
        words = filled(string if raw is not None else ESCAPES.sub(unescaped, string))
        if is_prose(words) and not re.search(r"\breason = $", text[max(0, match.start() - 20) : match.start()]):
            yield TEXT, text.count("\n", 0, match.start()) + 1, plain(words)
    lines, container = text.split("\n"), False
    at = 0
    while at < len(lines):
        mark = re.match(r" *(//[/!])(?!/) ?", lines[at])
        if not mark:
            if re.match(r"\w|#\[macro_export", lines[at]):
                container = bool(re.match(r"pub (?:enum|trait|unsafe trait) ", lines[at]))
            at += 1
            continue
        first, body = at, []
        while at < len(lines) and (line := re.match(rf" *{mark[1]}(?!/) ?(.*)", lines[at])):
            body.append(line[1])
            at += 1
        item = next((line for line in lines[at:] if not re.match(r" *(#|//|\)\]|$)", line)), "")
        is_public = re.match(r" *pub (?!\()", item) or (container and item.startswith("    "))
        if mark[1] == "//!" or exported or is_public:
            yield from ((COMMENT, *part) for part in markdown("\n".join(body), first + 1))


def header(text):
    """Line and text of the comments of a header for C."""
    for comment in re.finditer(r"/\*(.*?)\*/", text, re.DOTALL):
        body = re.sub(r"^ \* ?", "", comment[1], flags=re.MULTILINE)
        yield from docstring(body, text.count("\n", 0, comment.start()) + 1, indented_code=True)


SECTION = re.compile(r" *(?:Args|Returns|Raises|Yields|Attributes|Note|Notes|Example|Examples):$")
RULED = re.compile(r"^ *=+(?: +=+)+\n(?:.*\S.*\n)*? *=+(?: +=+)+\n(?:.*\S.*\n)*? *=+(?: +=+)+$", re.MULTILINE)
"""A table between lines of equals signs."""
ENTRY = re.compile(r" *(?:\*+\w+|[\w.`]+(?: \([^)]*\))?): ")


def docstring(text, first, indented_code=False):
    """Line and text of each paragraph of a docstring.

    Code after `::`, tables of reStructuredText, and with `indented_code` all that is indented are left out.
    """
    open_line, lines, code = first, [], None
    for number, line in enumerate([*RULED.sub(lambda table: "\n" * table[0].count("\n"), text).split("\n"), ""], first):
        indent = len(line) - len(line.lstrip())
        if code is not None and (not line.strip() or indent > code):
            continue
        code = None
        begins = BULLET.match(line) or ENTRY.match(line) or SECTION.match(line)
        if lines and (not line.strip() or begins):
            yield open_line, plain("\n".join(lines))
            lines = []
        if line.rstrip().endswith("::"):
            code, line = indent, line.rstrip()[:-1]
        if not line.strip() or SECTION.match(line) or (indented_code and not lines and line.startswith("    ")):
            continue
        if not lines:
            open_line = number
        lines.append(ENTRY.sub("", line) if ENTRY.match(line) and indent else line)
        if code is not None:
            yield open_line, plain("\n".join(lines))
            lines = []


def python(text, documents):
    """Kind, line and text of strings of Python, and with `documents` of the docstrings of public items."""
    tree = ast.parse(text)
    comments = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and is_text(node.value)}
    found, inner = [], set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inner |= {id(part) for part in ast.walk(node) if part is not node}
        if not isinstance(node, ast.expr) or id(node) in comments or id(node) in inner or not is_text(node):
            continue
        words = hidden(literal(node), r"\{[^{}\n]*\}|%[-+#0-9.]*[sdrgfx]\b").replace("\n", BREAK)
        if is_prose(words):
            found.append((TEXT, node.lineno, plain(words)))
    if documents:
        for node in public_docstrings(tree):
            found += [(COMMENT, *part) for part in docstring(inspect.cleandoc(node.value), node.lineno)]
    return found


def is_text(node):
    """Whether a node is a string, plain or formatted."""
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def literal(node):
    """A string, with `CODE` for the values of a formatted one."""
    if isinstance(node, ast.Constant):
        return node.value
    return "".join(part.value if isinstance(part, ast.Constant) else CODE for part in node.values)


def public_docstrings(tree):
    """The docstrings of a module, its public classes and functions, and the texts below its public constants."""
    exported = next((assigned(node) for node in tree.body if "__all__" in names(node)), None)
    yield from own_docstring(tree)
    for node, after in zip(tree.body, [*tree.body[1:], None]):
        if not any(name in exported if exported is not None else not name.startswith("_") for name in names(node)):
            continue
        yield from own_docstring(node)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(after, ast.Expr) and is_text(after.value):
            yield after.value
        for member in node.body if isinstance(node, ast.ClassDef) else []:
            if any(name == "__init__" or not name.startswith("_") for name in names(member)):
                yield from own_docstring(member)


def own_docstring(node):
    """The docstring of a module, a class or a function, if it has one."""
    body = getattr(node, "body", None)
    first = body[0] if isinstance(body, list) and body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        yield first.value


def names(node):
    """The names that a statement defines."""
    if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def assigned(node):
    """The texts of a list."""
    return {item.value for item in getattr(node.value, "elts", []) if isinstance(item, ast.Constant)}
