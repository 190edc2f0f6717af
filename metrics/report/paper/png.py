"""Draws a plot as a PNG file: PDFium renders the plot's PDF, with a font of its own in place of Helvetica."""

from __future__ import annotations

import io

from markupsafe import Markup

from efficientbench.metrics.report.paper.pdf import POINTS_PER_INCH, pdf_file

DOTS_PER_INCH = 288


def png_file(plot: Markup) -> bytes:
    """Return the content of a PNG file of DOTS_PER_INCH.

    Raises ModuleNotFoundError: pypdfium2 or Pillow is not installed (extra `png`).
    """
    import PIL  # noqa: F401, which pypdfium2 imports itself, and then says so at length
    import pypdfium2

    page = pypdfium2.PdfDocument(pdf_file(plot).encode("ascii"))[0]
    image, file = page.render(scale=DOTS_PER_INCH / POINTS_PER_INCH).to_pil(), io.BytesIO()
    image.save(file, "PNG", dpi=(DOTS_PER_INCH, DOTS_PER_INCH))
    return file.getvalue()
