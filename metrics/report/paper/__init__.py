"""Tables and figures for a paper: LaTeX, SVG and PDF."""
