"""``headrace verify run`` where it cannot begin."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace_cli.app import app
from headrace_cli.commands import verify
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_common.core.errors import TopicAlreadyExists
from headrace_verify.plan import Plan

runner = CliRunner()


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def without(name: str, *more: Any) -> Any:
        return None if name == "headrace_verify" else find(name, *more)

    monkeypatch.setattr(verify, "find_spec", without)
    result = runner.invoke(app, ["-b", "127.0.0.1:1", "verify", "run"])
    assert result.exit_code == ExitCode.USAGE, "1 is for anomalies"
    assert "headrace-cli[verify]" in result.stderr


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_without_a_cluster_it_could_not_be_run(more: list[str], tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    result = runner.invoke(app, ["verify", "run", "-b", "127.0.0.1:1", "--report", str(report), *more])
    assert result.exit_code == ExitCode.UNREACHABLE, "1 is for anomalies"
    assert not report.exists()


def test_what_fails_on_the_way_is_no_anomaly() -> None:
    for error in (TopicAlreadyExists("it is there"), OSError(28, "no room")):
        with pytest.raises(CommandFailed) as failed, verify._failures_are_no_anomalies(Plan((), "abc", 60)):
            raise error
        assert failed.value.exit_code == ExitCode.UNAVAILABLE
        assert "headrace-verify-abc-*" in failed.value.hint


def test_the_help_says_what_the_exit_codes_are() -> None:
    said = " ".join(runner.invoke(app, ["verify", "run", "-h"]).stdout.split())
    assert "0 sound, 1 an anomaly" in said
    assert "--rate" in said
