"""Checkpoints of a run: what lies in `<run folder>/checkpoint/`, how it is written, verified and read again.

`manifest` names and verifies them (no torch); `read` gives whole weights to one process; `save` and `load` are for the
ranks of a run, all together.
"""
