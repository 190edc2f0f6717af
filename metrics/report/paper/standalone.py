"""Makes a plot of the page a file of its own: SVG, PDF or PNG.

Each mark carries the colours and lines that the style sheet gave it: the programs that papers are made with do not read
a style sheet's variables, and some read no style sheet at all.
"""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from markupsafe import Markup

NAMESPACE = "http://www.w3.org/2000/svg"
FONT = "Helvetica, Arial, sans-serif"
DOTS_PER_INCH = 288
"""Of a PNG file."""
_POINTS_IN_PIXEL = 0.75
"""Points, of which an inch has 72, in a CSS pixel, the unit of a plot."""
_PAPER = "#ffffff"

_TEXTS = {"tick": ("quiet", 10.5), "axis": ("quiet", 10.5), "label": ("ink", 10.5), "value": ("ink", 10.5)}
"""Class of a text → its colour and size."""
_STROKES = {
    **{"grid": ("grid", 1.0), "base": ("rule", 1.0), "zero": ("quiet", 1.2), "front": ("quiet", 1.2)},
    **{"whisker": ("ink", 1.3), "median": ("ink", 1.8), "line": ("own", 1.5), "point": ("own", 1.6)},
    **{"interval": ("own", 1.5), "beyond": ("own", 1.5), "verdict": ("own", 1.6)},
}
"""Class of a mark → the colour and the width of its lines; `own` is the colour that another of its classes names."""
_FILLED = {"on", "better", "worse"}
"""Classes of points that are filled with their line's colour; others are hollow."""
_POINTS = {"point", "verdict"}
_OWN = {"better": "less", "worse": "more", "none": "quiet", "open": "quiet"}
_DASHES = {"front": "4 3", "open": "3 2.5"}


def drawing(plot: Markup) -> Element:
    """Return the plot as an SVG tree in which every mark carries its style, in the page's light colours."""
    root = ElementTree.fromstring(plot)
    colours = _colours()
    _style(root, colours)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    root.attrib |= {"xmlns": NAMESPACE, "width": f"{width:g}", "height": f"{height:g}", "font-family": FONT}
    root.insert(
        0, Element("rect", {"x": "0", "y": "0", "width": f"{width:g}", "height": f"{height:g}", "fill": _PAPER})
    )
    return root


def svg_file(plot: Markup) -> str:
    """Return the text of an SVG file."""
    return ElementTree.tostring(drawing(plot), encoding="unicode") + "\n"


def pdf_file(plot: Markup) -> bytes:
    """Return the content of a PDF file of one page, with vector lines and text in an embedded font.

    Raises ModuleNotFoundError: vl-convert is not installed (extra `plots`).
    """
    import vl_convert

    return vl_convert.svg_to_pdf(_in_points(plot))


def png_file(plot: Markup) -> bytes:
    """Return the content of a PNG file of DOTS_PER_INCH, as large as the PDF's page.

    Raises ModuleNotFoundError: vl-convert is not installed (extra `plots`).
    """
    import vl_convert

    return vl_convert.svg_to_png(_in_points(plot), ppi=DOTS_PER_INCH)


def _in_points(plot: Markup) -> str:
    """Return the text of an SVG file whose pixels are points, as vl-convert takes them."""
    root = drawing(plot)
    root.attrib |= {side: f"{float(root.attrib[side]) * _POINTS_IN_PIXEL:g}" for side in ("width", "height")}
    return ElementTree.tostring(root, encoding="unicode")


def _colours() -> dict[str, str]:
    """Return the page's light colours by name."""
    sheet = Path(__file__).parents[1].joinpath("html", "page.css").read_text(encoding="utf-8")
    light = sheet.partition("}")[0]
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", light))


def _style(parent: Element, colours: dict[str, str]) -> None:
    """Style the marks below `parent`, and remove what only a page needs."""
    for child in list(parent):
        classes = child.attrib.pop("class", "").split()
        if "hit" in classes or child.tag == "title":
            parent.remove(child)
            continue
        child.attrib.pop("data-run", None)
        child.attrib.pop("role", None)
        if child.tag == "text":
            child.attrib |= _text_looks(classes, colours)
        elif child.tag != "g":
            child.attrib |= _mark_looks(classes, colours)
        _style(child, colours)


def _text_looks(classes: list[str], colours: dict[str, str]) -> dict[str, str]:
    colour, size = next((_TEXTS[each] for each in classes if each in _TEXTS), ("ink", 11.0))
    quiet = {"none", "open"} & set(classes)
    weight = {"font-weight": "bold"} if "strong" in classes else {}
    return {"fill": colours["quiet" if quiet else colour], "font-size": f"{size:g}", **weight}


def _mark_looks(classes: list[str], colours: dict[str, str]) -> dict[str, str]:
    own = next((_OWN.get(each, each) for each in classes if each in _OWN or re.fullmatch(r"c\d", each)), "ink")
    colour, width = next((_STROKES[each] for each in classes if each in _STROKES), ("ink", 1.0))
    stroke = colours[own if colour == "own" else colour]
    fill = "none"
    if _POINTS & set(classes):
        fill = stroke if _FILLED & set(classes) else _PAPER
    dashes = next((_DASHES[each] for each in classes if each in _DASHES), "")
    looks = {"stroke": stroke, "stroke-width": f"{width:g}", "fill": fill}
    return looks | ({"stroke-dasharray": dashes} if dashes else {})
