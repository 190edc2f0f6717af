"""`report.html`: one file that opens offline, prints, and reads on a phone.

Plots are inline SVG written here rather than a plotting library's: plotly's bundle alone is 4.5 MB a file, draws
nothing before its script has run, and prints and scales for a phone badly, while 21 runs as SVG take a few hundred kB,
take the page's own colours in light and dark, and need no script at all. The script there is sorts the table.
"""
