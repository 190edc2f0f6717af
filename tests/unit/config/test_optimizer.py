"""Which optimizer updates what: what a choice sets, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.outside import lay_out

from efficientbench.basics.errors import ConfigError
from efficientbench.config.load import resolve
from efficientbench.config.schema import RunConfig

MUON = "training.optimizer=muon"


def test_muon_switches_the_distributed_optimizer_off_in_the_configuration() -> None:
    for overrides in ([MUON], [MUON, "parallel.dp=2"], [MUON, "parallel.distributed_optimizer=false"]):
        config = resolve("gqa_0.5B", overrides=overrides)
        assert not config.parallel.distributed_optimizer
        assert RunConfig.model_validate_json(config.model_dump_json()) == config
    assert resolve("gqa_0.5B").parallel.distributed_optimizer


def test_matrices_embeddings_and_head_may_have_separate_learning_rates() -> None:
    adamw, muon = (resolve("nanochat_d12", overrides=[f"training.optimizer={each}"]) for each in ("adamw", "muon"))
    rate = adamw.training.learning_rate
    assert (adamw.training.matrix_rate, muon.training.matrix_rate) == (rate, 0.02)
    own = ["training.matrix_learning_rate=0.3", "training.embedding_learning_rate=0.2", "training.head_learning_rate=4"]
    for overrides in (own, [MUON, *own]):
        training = resolve("nanochat_d12", overrides=overrides).training
        assert (training.matrix_rate, training.embedding_rate, training.head_rate) == (0.3, 0.2, 4)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["training.optimizer=moun"], "training.optimizer: .*'adamw' or 'muon'"),
        (
            [MUON, "parallel.distributed_optimizer=true"],
            "parallel.distributed_optimizer: training.optimizer=muon updates whole matrices, .* set it to false",
        ),
        (
            ["training.head_learning_rate=0.1"],
            r"training.head_learning_rate: the output projection is the embedding \(model.tied=true\)",
        ),
        (["training.matrix_learning_rate=0"], "training.matrix_learning_rate: .*greater than 0"),
    ],
)
def test_mistakes_in_overrides_are_named(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve("gqa_0.5B", overrides=overrides)


def test_muon_is_refused_where_a_variant_does_not_declare_its_matrices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(tmp_path, monkeypatch)
    message = r"training.optimizer: attention 'my_package.delta:VARIANT' does not declare its matrices"
    with pytest.raises(ConfigError, match=message):
        resolve(
            "gqa_0.5B",
            overrides=[MUON, "model.attention.kind=my_package.delta:VARIANT", "model.position.kind=none"],
        )
