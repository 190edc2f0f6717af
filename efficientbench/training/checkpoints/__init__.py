"""Checkpoints of a run, in `<run folder>/checkpoint/`.

`contents` decides what a checkpoint holds, `manager` when one is written and how a run resumes from one. `save` writes,
`read` reads whole weights in one process, `manifest` verifies files (no torch), `together` does so on all ranks.
`shards` cuts tensors for any layout, `storage` is the format on disk, and `megatron_internals` names all that these use
of Megatron's and torch's inner parts.
"""
