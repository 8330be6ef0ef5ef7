"""``cluster restore-status``, ``topic strays`` and ``topic adopt``: what is printed, and how it ends."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.admin_restore_types import RestoreInfo, StrayList, StrayLog, StrayTopic
from headrace.admin_types import PartitionInfo, TopicDescription
from headrace.errors import MetadataUnavailable
from headrace_cli.app import app
from headrace_cli.session import Session

runner = CliRunner()
ID = bytes(range(16))


class FakeAdmin:
    def __init__(self) -> None:
        self.restore: RestoreInfo | None = None
        self.strays = StrayList((), ())
        self.asked: list[Any] = []
        self.failure: Exception | None = None

    def describe_restore(self) -> RestoreInfo | None:
        return self.restore

    def list_strays(self) -> StrayList:
        return self.strays

    def adopt_topic(self, topic_id: str, name: str | None, **how: Any) -> Any:
        self.asked.append((topic_id, name, how))
        if self.failure is not None:
            raise self.failure
        partitions = tuple(PartitionInfo(n, 1, 0, (1,), (1,)) for n in range(2))
        return TopicDescription(name or "late", ID, False, {}, partitions)


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    fake = FakeAdmin()

    @contextmanager
    def opened(session: Session, **settings: Any) -> Any:
        yield fake

    monkeypatch.setattr(Session, "admin", opened)
    return fake


def run(*argv: str, code: int = 0) -> Any:
    result = runner.invoke(app, list(argv))
    assert result.exit_code == code, result.output
    return result


def restored(*missing: int, finished: bool) -> RestoreInfo:
    return RestoreInfo(finished, (0, 1, 2), missing, 9, 1_700_000_000_000, 1_700_000_060_000, 2, 1)


def test_there_was_none(admin: FakeAdmin) -> None:
    assert "never restored" in run("cluster", "restore-status").stderr
    assert json.loads(run("cluster", "restore-status", "-o", "json").stdout) == {"restore": None}


def test_it_waits_for_brokers(admin: FakeAdmin) -> None:
    admin.restore = restored(1, 2, finished=False)
    said = run("cluster", "restore-status", code=7)
    assert "start: broker 1, 2" in said.stderr
    assert "2023-11-14 22:13:20 UTC" in said.stdout
    found = json.loads(run("cluster", "restore-status", "-o", "json", code=7).stdout)["restore"]
    assert (found["missing_brokers"], found["finished"], found["backup_time_ms"]) == ([1, 2], False, 1_700_000_000_000)
    admin.restore = restored(finished=False)
    admin.restore = RestoreInfo(False, (0, 1, 2), (), 9, 1, 2, 0, 0, (1,))
    assert "look into their logs: broker 1" in run("cluster", "restore-status", code=7).stderr
    admin.restore = restored(finished=False)
    assert "in a moment" in run("cluster", "restore-status", code=7).stderr


def test_it_is_finished(admin: FakeAdmin) -> None:
    admin.restore = restored(finished=True)
    assert "finished" in run("cluster", "restore-status").stderr


def test_strays(admin: FakeAdmin) -> None:
    assert "no stray logs" in run("topic", "strays").stderr
    logs = (StrayLog(1, 0, 5, False), StrayLog(2, 0, 6, True))
    admin.strays = StrayList((StrayTopic(ID, "late", 1, logs, "its name late is taken"),), (3,))
    said = run("topic", "strays")
    assert ID.hex() in said.stdout
    assert "broker 3 does not answer" in said.stderr
    (found,) = json.loads(run("topic", "strays", "-o", "json").stdout)["strays"]
    assert (found["topic_id"], found["name"], len(found["logs"])) == (ID.hex(), "late", 2)


def test_adoption(admin: FakeAdmin) -> None:
    assert "adopted: late, 2 partitions" in run("topic", "adopt", ID.hex()).stderr
    said = run("topic", "adopt", ID.hex(), "--name", "other", "--partitions", "3", "--dry-run")
    assert "could be adopted: other" in said.stderr
    assert admin.asked == [
        (ID.hex(), None, {"partitions": 0, "validate_only": False}),
        (ID.hex(), "other", {"partitions": 3, "validate_only": True}),
    ]
    admin.failure = MetadataUnavailable("brokers 1 do not say what they have")
    assert "brokers 1" in run("topic", "adopt", ID.hex(), code=4).stderr
