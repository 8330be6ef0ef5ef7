"""Records of both topics: out and in again, and what does not stand there."""

from __future__ import annotations

import orjson
import pytest

from headrace_common.core.errors import HeadraceError
from headrace_connect_worker.core.encoding import NewerRecord, UnreadableRecord, decode_config, decode_status, encode
from headrace_connect_worker.core.records import (
    ConfigRecord,
    ConnectorConfigured,
    LeaderSaid,
    RestartDropped,
    RestartSaid,
    RunState,
    SplitSpec,
    Status,
    StatusRecord,
    TargetSet,
    TargetState,
    TaskConfigured,
    TaskDropped,
    TasksCommitted,
    TopicUsed,
    Work,
)

NAMES = ["shop", "a-1", "a-1-2", "status", "ümläut", "x:connector-y"]
SPLITS = (SplitSpec("de", {"path": "/a", "parts": [1, 2]}), SplitSpec("fr"))


@pytest.mark.parametrize("name", NAMES)
def test_config_records_come_back_as_they_went(name: str) -> None:
    records: list[ConfigRecord] = [
        ConnectorConfigured(name, {"connector.class": "files", "password": "${env:P}"}),
        ConnectorConfigured(name, None),
        *(TargetSet(name, target) for target in (*TargetState, None)),
        TaskConfigured(name, 0, 7, ()),
        TaskConfigured(name, 12, 2**60, SPLITS),
        TaskDropped(name, 3),
        TasksCommitted(name, 2, 7, 5, {"tasks.max": "2"}),
        TasksCommitted(name, 0, 8, 5, {}),
        TasksCommitted(name, None),
        RestartSaid(name, True, None, False),
        RestartSaid(name, False, (0, 4), True),
        RestartDropped(name),
        LeaderSaid("host:8083", "http://host:8083", 9),
    ]
    assert [decode_config(*encode(record)) for record in records] == records
    assert len({encode(record)[0] for record in records}) == 8, "each has a key of its own"


@pytest.mark.parametrize("name", NAMES)
def test_status_records_come_back_as_they_went(name: str) -> None:
    records: list[StatusRecord] = [
        *(Status(name, None, state, "why", "w:1", 5) for state in RunState),
        Status(name, 11, RunState.UNASSIGNED, "", "w:1", 5, 2**60),
        Status(name, None, None),
        Status(name, 0, None),
        TopicUsed(name, "orders", 3, 1_700_000_000_000),
        TopicUsed(name, "orders", -1),
        Work(name, "source", 4, splits=SPLITS, worker_id="w:1", epoch=6),
        Work(name, "sink", 4, "positions", 3, (), "w:1", 6),
        Work(name, ""),
    ]
    assert [decode_status(*encode(record)) for record in records] == records


def test_they_look_as_those_of_kafka_connect() -> None:
    def said(record: ConfigRecord | StatusRecord) -> tuple[str, object]:
        key, value = encode(record)
        assert value is not None
        return key.decode(), {k: v for k, v in orjson.loads(value).items() if k != "version"}

    assert said(ConnectorConfigured("a", {"k": "v"})) == ("connector-a", {"properties": {"k": "v"}})
    assert said(TargetSet("a", TargetState.PAUSED)) == ("target-state-a", {"state": "PAUSED"})
    key, value = said(Status("a", 0, RunState.FAILED, "why", "w:1", 5))
    assert key == "status-task-a-0"
    assert value == {"state": "FAILED", "trace": "why", "worker_id": "w:1", "generation": 5, "fenced": 0}
    assert said(Status("a", None, RunState.RUNNING, "", "w:1", 5))[0] == "status-connector-a"
    assert said(TopicUsed("a", "t", 0, 1))[0] == "status-topic-t:connector-a"
    assert decode_config(b"target-state-a", b'{"state":"PAUSED","state.v2":"STOPPED"}') == TargetSet(
        "a", TargetState.STOPPED
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"connector-a", b"{"),
        (b"connector-a", b"[]"),
        (b"connector-a", b"{}"),
        (b"connector-a", b'{"properties": 3}'),
        (b"target-state-a", b'{"state": "RUNNING"}'),
        (b"task-a", b'{"properties": {}}'),
        (b"task-a-x", b'{"properties": {}}'),
        (b"task-a-0", b'{"properties": {}}'),
        (b"task-a-0", b'{"properties": {"headrace.generation": "1", "headrace.splits": "["}}'),
        (b"commit-a", b'{"tasks": "many"}'),
        (b"headrace-leader", b"{}"),
        (b"restart-connector-a", b'{"connector": true, "only_failed": true, "tasks": [null]}'),
    ],
)
def test_what_does_not_stand_there_is_said(key: bytes, value: bytes) -> None:
    with pytest.raises(UnreadableRecord, match=key.decode()):
        decode_config(key, value)


def test_what_is_not_known_is_skipped_and_what_is_newer_is_not() -> None:
    assert decode_config(b"session-key", b'{"key": 1}') is None
    assert decode_config(None, b"{}") is None
    assert decode_config(b"\xff", b"{}") is None
    assert decode_status(b"other", b"{}") is None
    with pytest.raises(NewerRecord, match="version 2"):
        decode_config(b"connector-a", b'{"version": 2, "properties": {}}')
    with pytest.raises(NewerRecord) as ends:
        decode_status(b"status-connector-a", b'{"version": 9}')
    assert isinstance(ends.value, HeadraceError), "the process ends with its text, and without a trace"
