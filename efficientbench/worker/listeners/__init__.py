"""Listeners of training events: monitor and heartbeat, the display on a terminal, the files of a run, the profiler."""
