"""Makes `report.html`, one file that opens offline, prints, and is readable on a phone.

Plots are inline SVG of our own, not a plotting library's. Plotly's bundle alone is 4.5 MB a file, draws nothing before
its script has run, and suits neither print nor a phone. 21 runs as SVG take a few hundred kB, take the page's own
colours in light and dark, and need no script. The page's one script sorts the table, filters and highlights runs.
"""
