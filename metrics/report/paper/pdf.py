"""Writes a plot as a PDF file of one page, with vector lines and real text (ISO 32000-1).

A plot has only six kinds of marks, so a library that reads any SVG would be heavier than this writer. Text is in
Helvetica, which every PDF reader has, so no font is embedded.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree.ElementTree import Element

from markupsafe import Markup

from efficientbench.metrics.report.paper.standalone import drawing

POINTS_PER_INCH = 72
_POINTS = 0.75
"""PDF points in one unit of a plot, a CSS pixel."""
_ARC = 0.5523
"""Distance of the control points of a quarter circle's Bézier curve, as a share of the radius."""
# fmt: off
_WIDTHS = (
    278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278, 556, 556, 556, 556, 556, 556, 556,
    556, 556, 556, 278, 278, 584, 584, 584, 556, 1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833,
    722, 778, 667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469, 556, 333, 556, 556, 500, 556,
    556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556, 556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334,
    260, 334, 584,
)
"""Widths of Helvetica's characters from the space on, in thousandths of the font size (Adobe's font metrics)."""
# fmt: on
_OTHER_WIDTH = 584


def pdf_file(plot: Markup) -> str:
    """Return the text of a PDF file, all ASCII."""
    root = drawing(plot)
    width, height = (float(root.attrib[side]) * _POINTS for side in ("width", "height"))
    # Flip the vertical axis: a PDF page begins at its lower left corner, a plot at its upper left one.
    begin = f"{_POINTS} 0 0 {-_POINTS} 0 {height:g} cm"
    content = "\n".join([begin, *_commands(root)])
    font = "<< /Type /Font /Subtype /Type1 /BaseFont /{} /Encoding /WinAnsiEncoding >>"
    return _assembled(
        [
            "<< /Type /Catalog /Pages 2 0 R >>",
            "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {width:g} {height:g}] /Contents 6 0 R "
            "/Resources << /Font << /F1 4 0 R /F2 5 0 R >> >> >>",
            font.format("Helvetica"),
            font.format("Helvetica-Bold"),
            f"<< /Length {len(content)} >>\nstream\n{content}\nendstream",
        ]
    )


def _assembled(objects: list[str]) -> str:
    """Return the PDF file of these objects, with the cross-reference table of their offsets."""
    file, begins = "%PDF-1.4\n", []
    for number, content in enumerate(objects, start=1):
        begins.append(len(file))
        file += f"{number} 0 obj\n{content}\nendobj\n"
    table = "".join(f"{begin:010d} 00000 n \n" for begin in begins)
    count = len(objects) + 1
    return (
        f"{file}xref\n0 {count}\n0000000000 65535 f \n{table}trailer\n<< /Size {count} /Root 1 0 R >>\n"
        f"startxref\n{len(file)}\n%%EOF\n"
    )


def _commands(parent: Element) -> Iterator[str]:
    for child in parent:
        if child.tag == "g":
            yield from _commands(child)
        elif child.tag == "text":
            yield _text(child)
        else:
            yield f"{_looks(child)} {_path(child)} {_paint(child)}"


def _path(mark: Element) -> str:
    """Return a mark's outline."""
    if mark.tag == "circle":
        return _circle(*(float(mark.attrib[name]) for name in ("cx", "cy", "r")))
    if mark.tag == "rect":
        return " ".join(mark.attrib[name] for name in ("x", "y", "width", "height")) + " re"
    if mark.tag == "line":
        points = [f"{mark.attrib[f'x{end}']} {mark.attrib[f'y{end}']}" for end in (1, 2)]
    else:
        points = [pair.replace(",", " ") for pair in mark.attrib["points"].split()]
    drawn = [f"{points[0]} m", *(f"{point} l" for point in points[1:])]
    return " ".join([*drawn, "h"] if mark.tag == "polygon" else drawn)


def _circle(x: float, y: float, radius: float) -> str:
    """Return a circle as four Bézier curves, each a quarter."""
    far, drawn = _ARC * radius, [f"{x + radius:g} {y:g} m"]
    for right, down in ((1, 0), (0, 1), (-1, 0), (0, -1)):
        # The quarter goes from the end of the arm (right, down) to that of the next arm, (-down, right).
        begin, end = (x + right * radius, y + down * radius), (x - down * radius, y + right * radius)
        first = begin[0] - down * far, begin[1] + right * far
        second = end[0] + right * far, end[1] + down * far
        drawn.append(" ".join(f"{value:.3f}" for point in (first, second, end) for value in point) + " c")
    return " ".join(drawn)


def _looks(mark: Element) -> str:
    """Return the colours, the width and the dashes of a mark."""
    stroke, fill = (_colour(mark.attrib.get(name, "none")) for name in ("stroke", "fill"))
    dashes = mark.attrib.get("stroke-dasharray", "")
    return f"{stroke} RG {fill} rg {mark.attrib.get('stroke-width', '0')} w [{dashes}] 0 d"


def _paint(mark: Element) -> str:
    """Return the operator that strokes, fills, or does both."""
    is_filled, is_stroked = (mark.attrib.get(name, "none") != "none" for name in ("fill", "stroke"))
    return {(True, True): "B", (True, False): "f", (False, True): "S", (False, False): "n"}[is_filled, is_stroked]


def _text(mark: Element) -> str:
    content, size = (mark.text or "").replace("\N{MINUS SIGN}", "-"), float(mark.attrib["font-size"])
    font = "F2" if mark.attrib.get("font-weight") == "bold" else "F1"
    moved = {"start": 0.0, "middle": 0.5, "end": 1.0}[mark.attrib["text-anchor"]] * text_width(content, size)
    x, y = float(mark.attrib["x"]) - moved, mark.attrib["y"]
    shown = "".join(f"\\{byte:03o}" for byte in content.encode("cp1252", errors="replace"))
    return f"BT /{font} {size:g} Tf {_colour(mark.attrib['fill'])} rg 1 0 0 -1 {x:.2f} {y} Tm ({shown}) Tj ET"


def text_width(content: str, size: float) -> float:
    """Return the width of a text in Helvetica, in the unit of the font size."""
    places = (ord(character) - 32 for character in content)
    return size / 1000 * sum(_WIDTHS[place] if 0 <= place < len(_WIDTHS) else _OTHER_WIDTH for place in places)


def _colour(name: str) -> str:
    """Return '#rrggbb' as three shares; black for none, which is not painted."""
    digits = "000000" if name == "none" else name.removeprefix("#")
    return " ".join(f"{int(digits[place : place + 2], 16) / 255:.3f}" for place in (0, 2, 4))
