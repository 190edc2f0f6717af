"""CORE, the metric of DCLM (arXiv 2406.11794): the mean centred accuracy of 22 tasks, scored by losses."""
