"""The inner names of Megatron and torch that checkpoints use: an upgrade that changes one fails here first."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator

import pytest
from support.repository import ROOT

CHECKPOINTS = ROOT / "efficientbench" / "training" / "checkpoints"
pytestmark = pytest.mark.usefixtures("single_rank")

# What is called or overridden, and the parameters that the calls rely on.
PARAMETERS = {
    "by_sharded_keys": ["sharded_state_dict", "keep_only_main_replica"],
    "mcore_to_pyt_state_dict": ["state_dict", "is_loading"],
    "nested_values": ["x"],
    "save_state_dict_async_plan": ["state_dict", "storage_writer", "planner"],
    "wrap_exception": ["exc"],
    "FileSystemWriterAsync.prepare_write_data": ["plan", "planner"],
    "FileSystemWriterAsync.get_save_function_and_args": [],
    "FileSystemWriterAsync.preload_tensors": ["write_buckets", "non_blocking"],
    "FileSystemWriterAsync.retrieve_write_results": [],
    "FileSystemWriterAsync.write_preloaded_data": ["write_bucket", "results_queue", "count_queue", "use_fsync"],
    "MCoreLoadPlanner": ["shapes_validation_sharded_tensors"],
    "MCoreSavePlanner": ["dedup_replicated_tensors"],
    "TorchCommonLoadStrategy.load_common": ["checkpoint_dir"],
    "TorchDistLoadShardedStrategy.load": ["sharded_state_dict", "checkpoint_dir"],
    "TorchDistSaveShardedStrategy": ["backend", "version", "thread_count"],
    "TorchDistSaveShardedStrategy.async_save": ["sharded_state_dict", "checkpoint_dir"],
    "TorchDistSaveShardedStrategy._get_save_and_finalize_callbacks": ["writer", "save_state_dict_ret"],
    "AsyncCallsQueue.schedule_async_request": ["async_request"],
    "AsyncCallsQueue.maybe_finalize_async_calls": ["blocking"],
    "AsyncRequest": ["async_fn", "async_fn_args", "finalize_fns", "preload_fn"],
    "DistributedOptimizer._get_model_param_range_map": ["param"],
}
# Everything else in Megatron's checkpoints is reached through `engine`.
PUBLIC = {"megatron.core.dist_checkpointing"}


@pytest.mark.parametrize("name", PARAMETERS)
def test_megatrons_functions_accept_the_passed_arguments(name: str) -> None:
    from efficientbench.training.checkpoints import megatron_internals

    found: object = megatron_internals
    for part in name.split("."):
        found = getattr(found, part)
    taken = inspect.signature(found).parameters  # type: ignore[arg-type]
    assert [each for each in PARAMETERS[name] if each not in taken] == []


def test_megatrons_classes_have_the_attributes_that_are_read() -> None:
    from efficientbench.training.checkpoints import megatron_internals

    queue = megatron_internals.AsyncCallsQueue()
    assert len(queue.async_calls) == 0
    assert megatron_internals.default_store().num_keys() >= 0
    assert "async_caller" in inspect.getsource(type(queue))
    assert "model_param_group_index_map" in inspect.getsource(megatron_internals.DistributedOptimizer)


def _inner_names(source: str) -> Iterator[str]:
    """Imports from inner modules of Megatron's checkpoints, and underscored names of other packages."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(("megatron", "torch")):
            deep = node.module.startswith("megatron.core.dist_checkpointing") and node.module not in PUBLIC
            yield from (f"{node.module}.{each.name}" for each in node.names if deep or each.name.startswith("_"))
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if owner not in ("self", "cls", "os", "contents", "manifest"):
                yield node.attr


def test_no_other_file_uses_inner_names_of_megatron() -> None:
    found = {
        file.name: names
        for file in sorted(CHECKPOINTS.glob("*.py"))
        if file.name != "megatron_internals.py" and (names := list(_inner_names(file.read_text(encoding="utf-8"))))
    }
    assert found == {}
