"""The few shapes that the pictures of this folder are made of."""

from html import escape

INK, GREY, FAINT, PAPER = "#1f2933", "#697586", "#e4e7ec", "#ffffff"
BLUE, ORANGE = "#2f6fde", "#e08a1e"
SANS = "font-family='system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif'"


def picture(width, height, title, parts):
    """A whole SVG file."""
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:.0f} {height:.0f}' {SANS} role='img'>"
    return "\n".join([head, f"<title>{escape(title)}</title>", box(0, 0, width, height, PAPER), *parts, "</svg>\n"])


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
