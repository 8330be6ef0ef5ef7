"""``cluster restore-status``, ``topic strays`` and ``topic adopt``: what is printed, and how it ends."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.admin_restore_types import RestoreInfo, StrayList
from headrace.admin_types import TopicDescription
from headrace.errors import MetadataUnavailable
from headrace_cli.app import app
from headrace_cli.session import Session
from headrace_proto.v1 import cluster_pb2
from headrace_proto.v1 import controller_pb2 as pb

runner = CliRunner()
ID = bytes(range(16))


class FakeAdmin:
    def __init__(self) -> None:
        self.found = pb.DescribeRestoreResponse()
        self.asked: list[Any] = []
        self.failure: Exception | None = None

    def describe_restore(self) -> RestoreInfo | None:
        return RestoreInfo.of(self.found) if self.found.HasField("restore") else None

    def list_strays(self) -> StrayList:
        return StrayList.of(self.found)

    def adopt_topic(self, topic_id: str, name: str | None, **how: Any) -> Any:
        self.asked.append((topic_id, name, how))
        if self.failure is not None:
            raise self.failure
        partitions = [cluster_pb2.Partition(partition=n, leader=1) for n in range(2)]
        topic = cluster_pb2.Topic(name=name or "late", topic_id=ID)
        return TopicDescription.of(pb.TopicDescription(topic=topic, partitions=partitions))


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


def restored(*missing: int, finished: bool) -> pb.DescribeRestoreResponse:
    restore = pb.Restore(
        finished=finished,
        expected=[0, 1, 2],
        missing=missing,
        backup_revision=9,
        backup_time_ms=1_700_000_000_000,
        restore_time_ms=1_700_000_060_000,
        adopted_topics=2,
        empty_topics=1,
    )
    return pb.DescribeRestoreResponse(restore=restore)


def test_there_was_none(admin: FakeAdmin) -> None:
    assert "never restored" in run("cluster", "restore-status").stderr
    assert json.loads(run("cluster", "restore-status", "-o", "json").stdout) == {"restore": None}


def test_it_waits_for_brokers(admin: FakeAdmin) -> None:
    admin.found = restored(1, 2, finished=False)
    said = run("cluster", "restore-status", code=7)
    assert "start: broker 1, 2" in said.stderr
    assert "2023-11-14 22:13:20 UTC" in said.stdout
    found = json.loads(run("cluster", "restore-status", "-o", "json", code=7).stdout)["restore"]
    assert (found["missing_brokers"], found["finished"], found["backup_time_ms"]) == ([1, 2], False, 1_700_000_000_000)
    admin.found = restored(finished=False)
    admin.found.silent.append(1)
    assert "look into their logs: broker 1" in run("cluster", "restore-status", code=7).stderr
    admin.found = restored(finished=False)
    assert "in a moment" in run("cluster", "restore-status", code=7).stderr


def test_it_is_finished(admin: FakeAdmin) -> None:
    admin.found = restored(finished=True)
    assert "finished" in run("cluster", "restore-status").stderr


def test_strays(admin: FakeAdmin) -> None:
    assert "no stray logs" in run("topic", "strays").stderr
    logs = [
        pb.StrayLog(broker_id=1, partition=0, log_end_offset=5),
        pb.StrayLog(broker_id=2, partition=0, log_end_offset=6, damaged=True),
    ]
    late = cluster_pb2.Topic(name="late", partition_count=1)
    stray = pb.StrayTopic(topic_id=ID, topic=late, logs=logs, note="its name late is taken")
    admin.found = pb.DescribeRestoreResponse(strays=[stray], silent=[3])
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
