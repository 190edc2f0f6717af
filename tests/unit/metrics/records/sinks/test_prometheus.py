"""What Prometheus reads of a run: at an endpoint, and in a file of node_exporter's textfile collector."""

from __future__ import annotations

import re
import urllib.request
from contextlib import closing
from pathlib import Path
from urllib.error import HTTPError, URLError

import pytest
from support.command_line import free_port

from efficientbench.basics.errors import MetricsError
from efficientbench.metrics.records.sinks.prometheus import PrometheusLog
from efficientbench.metrics.records.sinks.registry import SINKS, Run, Sinks, asked_of, check_sinks, named

LINE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)\{((?:[a-z]+="(?:[^"\\]|\\.)*",?)*)\} (\S+)')
"""A sample in the text format 0.0.4 of Prometheus, with labels."""


def values_of(text: str) -> dict[str, float]:
    """Return the samples of a text by name; every name has its type before it."""
    found = {}
    for typed, sample in zip(*[iter(text.splitlines())] * 2, strict=True):
        match = LINE.fullmatch(sample)
        assert match is not None, sample
        assert typed == f"# TYPE {match[1]} gauge"
        found[match[1].removeprefix("efficientbench_")] = float(match[3])
    return found


def test_an_endpoint_shows_the_latest_values_until_the_run_ends() -> None:
    port = free_port()
    where = f"http://127.0.0.1:{port}/metrics"
    with closing(PrometheusLog(str(port), "gqa_1.5B", "seed_2")) as log:
        log.scalars("step", 1, {"train/loss": 2.5, "energy/power_w": None})
        log.scalars("tokens", 64, {"by_tokens/train_loss": 2.5})
        log.scalars("step", 2, {"train/loss": float("nan"), "efficiency/tokens_per_s": 10.0})
        log.figures({"mfu": 0.5, "energy_j": None, "device_name": "cpu"})
        with urllib.request.urlopen(where, timeout=30) as answer:
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            text = answer.read().decode()
        values = values_of(text)
        assert str(values.pop("train_loss")) == "nan"
        assert values == {"running": 1, "step": 2, "efficiency_tokens_per_s": 10, "record_mfu": 0.5}
        assert '{run="gqa_1.5B",repeat="seed_2"}' in text
        with pytest.raises(HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30)
        with pytest.raises(MetricsError, match=f"prometheus: {port} cannot be opened \\(Address already in use"):
            PrometheusLog(str(port), "other")
    with pytest.raises(URLError):
        urllib.request.urlopen(where, timeout=30)


def test_a_folder_gets_a_file_for_each_run_and_repeat(tmp_path: Path) -> None:
    targets = {"prometheus": str(tmp_path)}
    for folder in (tmp_path / "gqa", tmp_path / "gqa" / "seed_2"):
        with closing(Sinks(targets, Run(folder, 'g"qa'))) as sinks:
            sinks.scalars(1, {"train/loss": 2.5})
            [path] = [each for each in tmp_path.glob("*.prom") if (folder.name == "seed_2") == ("seed_2" in each.name)]
            assert values_of(path.read_text())["running"] == 1
        assert values_of(path.read_text()) == {"running": 0, "step": 1, "train_loss": 2.5}
        assert r'run="g\"qa"' in path.read_text()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_run_continues_after_its_file_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "collector"
    folder.mkdir()
    log = PrometheusLog(str(folder), "gqa")
    monkeypatch.setattr("efficientbench.metrics.records.sinks.prometheus.WRITTEN_EVERY_S", 0.0)
    (folder / "efficientbench_gqa.prom").unlink()
    folder.rmdir()
    folder.write_text("")  # a file in the folder's place
    for step in (1, 2):
        log.scalars("step", step, {"train/loss": 2.5})
    log.close()
    assert capsys.readouterr().out.count("warning: Prometheus gets no more of this run: ") == 1


def test_sinks_that_cannot_be_are_named(tmp_path: Path) -> None:
    with pytest.raises(MetricsError, match=r"is neither a port, as 9400 or HOST:9400, nor a folder that exists"):
        check_sinks({"prometheus": str(tmp_path / "missing")})
    with pytest.raises(MetricsError, match=r"'promethius:9400' is no sink \(did you mean prometheus\?\): they are"):
        named(["promethius:9400"])
    with pytest.raises(MetricsError, match="'wandb' is no sink: they are"):
        named(["wandb"])
    assert named(["prometheus:0.0.0.0:9400", "tensorboard:a:b"]) == {
        "prometheus": "0.0.0.0:9400",
        "tensorboard": "a:b",
    }


def test_configurations_have_a_key_for_each_sink_but_tensorboard() -> None:
    from efficientbench.config.schema import RunConfig
    from efficientbench.finetuning.config import FinetuneConfig

    for config in (RunConfig, FinetuneConfig):
        assert SINKS.keys() & config.model_fields.keys() == {"wandb", "prometheus"}
    assert asked_of(RunConfig.model_construct(prometheus="9400")) == {"prometheus": "9400"}
