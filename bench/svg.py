"""The few shapes that the pictures of this folder are made of.

A picture has no background. Text, grids and boxes have other colours where a reader's page is dark; the colours of curves and bars are
seen on white and on black. Shapes name light colours, and a style sheet in the file replaces them, so a program that knows no style
sheets shows the light picture.
"""

from html import escape

INK, GREY, FAINT, PANEL = "#1f2933", "#5f6b7a", "#dde2e9", "#f4f6f9"
DARK = {INK: "#e6edf3", GREY: "#9aa5b4", FAINT: "#343c47", PANEL: "#161b22"}
"""What these are on a dark page."""
BLUE, ORANGE, GREEN, RED = "#2f81f7", "#d97706", "#0f9d76", "#dc4a4a"
PURPLE, OLIVE, PINK, CYAN = "#9b6bdf", "#a07a1f", "#d64f9f", "#1296b0"
SANS = "font-family='system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif'"


def picture(width, height, title, parts):
    """A whole SVG file."""
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:.0f} {height:.0f}' {SANS} role='img'>"
    return "\n".join([head, f"<title>{escape(title)}</title>", style(), *parts, "</svg>\n"])


def style():
    """The style sheet for dark pages."""
    rules = "".join(f"[fill='{light}']{{fill:{dark}}}[stroke='{light}']{{stroke:{dark}}}" for light, dark in DARK.items())
    return f"<style>@media (prefers-color-scheme:dark){{{rules}}}</style>"


def text(x, y, content, size=13, fill=INK, anchor="start", weight=400):
    """One line of text; (x, y) is its baseline."""
    style = f"font-size='{size}' fill='{fill}' text-anchor='{anchor}' font-weight='{weight}'"
    return f"<text x='{x:.1f}' y='{y:.1f}' {style}>{escape(content)}</text>"


def box(x, y, width, height, fill, tip=None, stroke="none"):
    """A rectangle; `tip` shows where a pointer rests on it."""
    inside = f"<title>{escape(tip)}</title>" if tip else ""
    shape = f"x='{x:.2f}' y='{y:.1f}' width='{max(width, 0.3):.2f}' height='{height:.1f}'"
    return f"<rect {shape} fill='{fill}' stroke='{stroke}'>{inside}</rect>"


def line(points, stroke, width=1.0, dash=None):
    """A line through points."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashes = f" stroke-dasharray='{dash}'" if dash else ""
    style = f"fill='none' stroke='{stroke}' stroke-width='{width}' stroke-linejoin='round'{dashes}"
    return f"<polyline points='{path}' {style}/>"


def dot(x, y, fill, radius=3.0):
    """A filled circle."""
    return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{radius}' fill='{fill}'/>"


CORNERS = {
    "square": [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
    "triangle": [(0, -1.2), (1.1, 0.8), (-1.1, 0.8)],
    "diamond": [(0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)],
    "nabla": [(0, 1.2), (1.1, -0.8), (-1.1, -0.8)],
}
"""Of marks that are not round, in radii."""


def mark(x, y, fill, shape="circle", radius=3.0):
    """A filled mark of a curve: a circle, or a shape of `CORNERS`."""
    if shape == "circle":
        return dot(x, y, fill, radius)
    points = " ".join(f"{x + radius * right:.1f},{y + radius * down:.1f}" for right, down in CORNERS[shape])
    return f"<polygon points='{points}' fill='{fill}'/>"
