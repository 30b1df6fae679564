"""What every picture has to be: readable on light and dark pages, with short numbers and labels that cover nothing."""

import itertools
import re
import xml.etree.ElementTree as xml

SVG = "{http://www.w3.org/2000/svg}"
LETTER = 0.5
"""The least width of a letter, in heights of the text."""


def check(picture):
    """Fails with a sentence that names the first text or shape that breaks a rule."""
    root = xml.fromstring(picture)
    _, _, width, height = map(float, root.get("viewBox").split())
    style = root.find(f"{SVG}style")
    assert style is not None and "prefers-color-scheme:dark" in style.text, "no colours for dark pages"
    for rect in root.iter(f"{SVG}rect"):
        assert rect.get("fill") not in ("white", "#fff", "#ffffff"), f"a box is {rect.get('fill')}"
        assert float(rect.get("width")) < width or float(rect.get("height")) < height, "a rectangle behind everything"
    found = list(boxes(root))
    for words, left, top, right, bottom in found:
        assert left >= 0 and top >= 0 and right <= width and bottom <= height, f"{words!r} leaves the picture"
        for number in re.findall(r"(?<![\w.])\d+\.\d+(?= [a-zA-Z]+)", words):
            assert len(number.replace(".", "").lstrip("0")) <= 4, f"{words!r} has many digits"
    for (words, *one), (others, *two) in itertools.combinations(found, 2):
        is_apart = one[2] <= two[0] or two[2] <= one[0] or one[3] <= two[1] or two[3] <= one[1]
        assert is_apart, f"{words!r} covers {others!r}"


def boxes(root):
    """(words, left, top, right, bottom) of each text, as narrow as it can be; turned texts are left out."""
    for element, x, y in placed(root, 0.0, 0.0):
        if element.get("transform") or not element.text:
            continue
        size = float(element.get("font-size") or root.get("font-size"))
        width = LETTER * size * len(element.text)
        left = x - {"start": 0, "middle": width / 2, "end": width}[element.get("text-anchor", "start")]
        yield element.text, left, y - 0.6 * size, left + width, y


def placed(group, left, top):
    """Each text within a group that begins at `left` and `top`, and where it is in the picture."""
    for element in group:
        if element.tag == f"{SVG}g":
            right, down = map(float, re.fullmatch(r"translate\((\S+) (\S+)\)", element.get("transform")).groups())
            yield from placed(element, left + right, top + down)
        elif element.tag == f"{SVG}text":
            yield element, left + float(element.get("x")), top + float(element.get("y"))
