"""Checkpoints of a run, in `<run folder>/checkpoint/`.

`contents` decides what a checkpoint holds; `manager` decides when to write one, and resumes from one. `save` writes,
`read` reads full weights in one process, `manifest` verifies files (no torch), `together` verifies on all ranks.
`shards` cuts tensors for any layout, `storage` is the format on disk, and `megatron_internals` names every private part
of Megatron and torch that the others use.
"""
