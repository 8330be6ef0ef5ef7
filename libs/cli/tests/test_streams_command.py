"""What ``headrace streams run`` tells workers: options over the environment over defaults."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace_cli.app import app
from headrace_streams import worker_process
from headrace_streams.config import StreamsConfig
from headrace_streams.worker_process import Ending


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings that workers would get."""
    found: dict[str, Any] = {}

    class Stub:
        def __init__(self, program: str, settings: Mapping[str, Any], workers: int) -> None:
            found.update(settings)

        def run(self) -> Ending:
            return Ending.DONE

    monkeypatch.setattr(worker_process, "Parent", Stub)
    return found


def config(told: dict[str, Any], *options: str, **environment: str) -> StreamsConfig:
    ended = CliRunner().invoke(app, ["streams", "run", "words.py", "--bootstrap", "b:1", *options], env=environment)
    assert ended.exit_code == 0, ended.output
    return StreamsConfig.of(told)


def test_what_is_not_said_is_the_default(told: dict[str, Any]) -> None:
    assert config(told) == StreamsConfig(bootstrap_servers="b:1")


def test_options_count_before_the_environment(told: dict[str, Any]) -> None:
    environment = {"HEADRACE_STREAMS_STANDBYS": "1", "HEADRACE_STREAMS_COMMIT_INTERVAL_MS": "20"}
    assert config(told, **environment) == StreamsConfig(bootstrap_servers="b:1", standbys=1, commit_interval_ms=20)
    found = config(told, "--standbys", "0", "--state-dir", "/s", "--commit-interval-ms", "7", **environment)
    assert found == StreamsConfig(bootstrap_servers="b:1", standbys=0, state_dir=Path("/s"), commit_interval_ms=7)


def test_a_variable_that_cannot_be_is_refused_before_anything_starts(told: dict[str, Any]) -> None:
    variable = "HEADRACE_STREAMS_COMMIT_ROWS"
    ended = CliRunner().invoke(app, ["streams", "run", "words.py", "--bootstrap", "b:1"], env={variable: "many"})
    assert ended.exit_code != 0
    assert f"{variable}: takes a whole number" in ended.output
    assert not told
