"""``headrace consume --isolation-level``: what is printed of transactions, and where ``--exit-at-end`` ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.testing import MemoryBackend
from headrace_cli.app import app
from headrace_cli.session import Session


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, headrace_memory: MemoryBackend) -> Iterator[None]:
    """A topic with one record outside of transactions, one of an aborted, a committed and an open one each."""
    headrace_memory.create_topic("flights", 1)
    with headrace_memory.producer() as producer:
        producer.send("flights", b"plain").result(timeout=10)
    monkeypatch.setattr(
        Session, "consumer", lambda self, *topics, **settings: headrace_memory.consumer(*topics, **settings)
    )
    with ExitStack() as stack:
        for value in ("aborted", "committed", "open"):
            producer = stack.enter_context(headrace_memory.producer(transactional_id=value))
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("flights", value.encode()).result(timeout=10)
            if value == "aborted":
                producer.abort_transaction()
            elif value == "committed":
                producer.commit_transaction()
        yield


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
