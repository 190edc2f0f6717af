"""Listeners of training events: monitor and pulse, the display on a terminal, the files of a run, the profiler."""
