"""Tokenizers by name, from a hub on this machine that also fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from replicas.hub_server import Fault, HubState, hub_server
from support.repository import ROOT

from efficientbench.data_tools.tokenizer.tokenizer import load_tokenizer, train_tokenizer

NO_SERVER = "http://127.0.0.1:9"
UNREACHABLE = (
    r"'owner/words' is no folder here, and cannot be downloaded from the Hugging Face hub \(.*\), nor is it in the "
    "hub's local cache: give the path of a folder; HF_HOME=FOLDER chooses another cache"
)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubState]:
    train_tokenizer(["some words"], 260, tmp_path / "words")
    with hub_server({path.name: path.read_bytes() for path in (tmp_path / "words").iterdir()}) as state:
        state.kind, state.repository = "models", "owner/words"
        yield state


def load_by_name(name: str, endpoint: str, home: Path) -> str:
    """What a fresh process prints: the fingerprint, or the error."""
    code = (
        "from efficientbench.data_tools.tokenizer.tokenizer import *\n"
        f"try: print(load_tokenizer({name!r}).fingerprint)\n"
        "except DataError as error: print(error)"
    )
    env = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "HF_TOKEN": "hf_sesame"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
    return done.stdout.strip()


def test_a_named_tokenizer_is_fetched_once_and_then_loaded_without_the_hub(hub: HubState, tmp_path: Path) -> None:
    found = [
        load_by_name("owner/words", endpoint, tmp_path / "home") for endpoint in (NO_SERVER, hub.endpoint, NO_SERVER)
    ]
    assert re.fullmatch(UNREACHABLE, found[0]), found
    assert found[1:] == [load_tokenizer(tmp_path / "words").fingerprint] * 2


@pytest.mark.parametrize(
    ("name", "fault", "message"),
    [
        ("owner/nothing", Fault(), "'owner/nothing' is no folder here, and the Hugging Face hub has no such name .*"),
        ("what is this?", Fault(), ".* is neither a folder here nor a name that the Hugging Face hub could have"),
        ("owner/words", Fault(status=503), UNREACHABLE),
        ("owner/words", Fault(status=403), r".*403 Forbidden: refused: Bearer <token>.*"),
    ],
)
def test_hub_failures_are_reported_without_the_token(
    hub: HubState, tmp_path: Path, name: str, fault: Fault, message: str
) -> None:
    hub.always["info"] = fault
    found = load_by_name(name, hub.endpoint, tmp_path / "home")
    assert re.fullmatch(message, found), found
    assert "sesame" not in found
