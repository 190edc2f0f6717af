"""CORE, the metric of DCLM (arXiv 2406.11794): 22 tasks, scored by losses, centred on chance, and averaged."""
