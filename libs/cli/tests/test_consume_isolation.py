"""``headrace consume --isolation-level``: what is printed of transactions, and where ``--exit-at-end`` ends."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.testing import MemoryBackend
from headrace_cli.app import app
from headrace_cli.session import Session
from headrace_common.core.batch import RecordColumns, build_batch


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> MemoryBackend:
    """A topic with one record outside of transactions, one of an aborted, a committed and an open one each."""
    backend = MemoryBackend()
    backend.create_topic("flights", 1)
    log = backend.cluster.log("flights", 0)
    log.append(build_batch(RecordColumns(values=[b"plain"])), 0)
    for producer, value in ((7, b"aborted"), (8, b"committed"), (9, b"open")):
        columns = RecordColumns(values=[value])
        log.append(build_batch(columns, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True), 0)
        if value != b"open":
            log.end_transaction(producer, 1, commit=value == b"committed", leader_epoch=0, now_ms=0)
    monkeypatch.setattr(Session, "consumer", lambda self, *topics, **settings: backend.consumer(*topics, **settings))
    return backend


@pytest.mark.parametrize("group", [[], ["-g", "printing"]])
@pytest.mark.parametrize(
    ("level", "printed"),
    [
        ([], ["plain", "aborted", "committed", "open"]),
        (["--isolation-level", "read_uncommitted"], ["plain", "aborted", "committed", "open"]),
        (["--isolation-level", "read_committed"], ["plain", "committed"]),
    ],
)
@pytest.mark.usefixtures("memory")
def test_what_is_printed_of_transactions(group: list[str], level: list[str], printed: list[str]) -> None:
    result: Any = CliRunner().invoke(app, ["consume", "flights", "-e", "--from", "beginning", *level, *group])
    assert result.exit_code == 0, result.output
    assert result.stdout.split() == printed


def test_a_level_that_there_is_not_is_refused() -> None:
    result = CliRunner().invoke(app, ["consume", "flights", "--isolation-level", "serializable"])
    assert result.exit_code == 2
    assert "read_committed" in result.output
