"""
What stands in the config topic and the status topic: Kafka Connect's keys and values, and what is ours beside them.

Values are JSON objects. Each has ``version``; a reader refuses what a newer worker wrote, and skips keys and fields
that it does not know. A null value deletes its key.

==============================  ================================================================================
config topic (one partition)
``connector-NAME``              ``{"properties": {…}}``
``target-state-NAME``           ``{"state": "STARTED" | "PAUSED" | "STOPPED"}``
``task-NAME-N``                 ``{"properties": {"headrace.generation": "G", "headrace.splits": "[…]"}}``
``commit-NAME``                 ``{"tasks": N, "generation": G, "config_offset": O, "properties": {…}}``: tasks 0 to
                                N - 1 of generation G run with these properties, which were at offset O
``restart-connector-NAME``      ``{"connector": bool, "tasks": [N, …] | null, "only_failed": bool}``
``headrace-leader``             ``{"worker_id": "…", "url": "…", "epoch": E}``: who writes from here on
status topic
``status-connector-NAME``       ``{"state", "trace", "worker_id", "generation"}``: generation is the epoch of the item
``status-task-NAME-N``          the same
``status-topic-T:connector-N``  ``{"topic": {"name", "connector", "task", "discoverTimestamp"}}``
``headrace-work-NAME``          ``{"generation", "worker_id", "config_offset", "kind", "guarantee", "tasks",
                                "splits"}``: what a watcher has found to do
==============================  ================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import orjson

from headrace_common.core.errors import UnsupportedVersion
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

VERSION: Final = 1
GENERATION: Final = "headrace.generation"
SPLITS: Final = "headrace.splits"
_SHOWN_CHARS_MAX: Final = 120

_CONNECTOR: Final = "connector-"
_TARGET: Final = "target-state-"
_TASK: Final = "task-"
_COMMIT: Final = "commit-"
_RESTART: Final = "restart-connector-"
_LEADER: Final = "headrace-leader"
_STATUS_CONNECTOR: Final = "status-connector-"
_STATUS_TASK: Final = "status-task-"
_STATUS_TOPIC: Final = "status-topic-"
_OF_CONNECTOR: Final = ":connector-"
_WORK: Final = "headrace-work-"

Json: TypeAlias = Mapping[str, Any]


class UnreadableRecord(Exception):
    """A record whose key is known, and whose value is not what stands there; it is skipped, and said in the log."""


class NewerRecord(UnsupportedVersion):
    """
    A record of a version that this worker does not know: it must not go on, for it would forget what it says. So who
    raises ``VERSION`` ends all workers that are older as soon as it writes; fields and keys may be added without that.
    """


# --- out ------------------------------------------------------------------------------------------------------------


def encode(record: ConfigRecord | StatusRecord) -> tuple[bytes, bytes | None]:
    """Key and value of a record."""
    key, value = _encode(record)
    return key.encode(), None if value is None else orjson.dumps({**value, "version": VERSION})


def _encode(record: ConfigRecord | StatusRecord) -> tuple[str, Json | None]:
    match record:
        case ConnectorConfigured(name, properties):
            return _CONNECTOR + name, None if properties is None else {"properties": dict(properties)}
        case TargetSet(name, target):
            return _TARGET + name, None if target is None else {"state": target.value}
        case TaskConfigured(name, task, generation, splits):
            listed = orjson.dumps(_splits_out(splits)).decode()
            return f"{_TASK}{name}-{task}", {"properties": {GENERATION: str(generation), SPLITS: listed}}
        case TaskDropped(name, task):
            return f"{_TASK}{name}-{task}", None
        case TasksCommitted(name, None):
            return _COMMIT + name, None
        case TasksCommitted(name, count, generation, config_offset, properties):
            said = {"tasks": count, "generation": generation, "config_offset": config_offset}
            return _COMMIT + name, {**said, "properties": dict(properties)}
        case RestartSaid(name, connector, tasks, only_failed):
            named = None if tasks is None else list(tasks)
            return _RESTART + name, {"connector": connector, "tasks": named, "only_failed": only_failed}
        case RestartDropped(name):
            return _RESTART + name, None
        case LeaderSaid(worker_id, url, epoch):
            return _LEADER, {"worker_id": worker_id, "url": url, "epoch": epoch}
        case Status() | TopicUsed() | Work():
            return _encode_status(record)


def _encode_status(record: StatusRecord) -> tuple[str, Json | None]:
    match record:
        case Status(name, task):
            key = _STATUS_CONNECTOR + name if task is None else f"{_STATUS_TASK}{name}-{task}"
            if record.state is None:
                return key, None
            said = {"state": record.state.value, "trace": record.trace or None, "worker_id": record.worker_id}
            return key, {**said, "generation": record.epoch, "fenced": record.fenced}
        case TopicUsed(name, topic, task, found_ms):
            used = {"name": topic, "connector": name, "task": task, "discoverTimestamp": found_ms}
            return f"{_STATUS_TOPIC}{topic}{_OF_CONNECTOR}{name}", None if task < 0 else {"topic": used}
        case Work(name, kind):
            if not kind:
                return _WORK + name, None
            found_by = {
                "generation": record.epoch,
                "worker_id": record.worker_id,
                "config_offset": record.config_offset,
            }
            found = {"kind": kind, "guarantee": record.guarantee, "tasks": record.tasks}
            return _WORK + name, {**found_by, **found, "splits": _splits_out(record.splits)}


def _splits_out(splits: Sequence[SplitSpec]) -> list[Json]:
    return [{"id": split.id, "detail": dict(split.detail)} for split in splits]


# --- in -------------------------------------------------------------------------------------------------------------


def decode_config(key: bytes | None, value: bytes | None) -> ConfigRecord | None:
    """
    A record of the config topic; None: a key that this worker does not know.

    Raises:
        UnreadableRecord: the value is not what stands under this key.
        NewerRecord: a newer worker wrote it.
    """
    name = _text(key)
    said = None if value is None else _object(name, value)
    try:
        return _decode_config(name, said)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableRecord(f"{name[:_SHOWN_CHARS_MAX]}: {error!r}") from None


def _decode_config(key: str, said: Json | None) -> ConfigRecord | None:
    if key == _LEADER:
        return None if said is None else LeaderSaid(str(said["worker_id"]), str(said["url"]), int(said["epoch"]))
    if key.startswith(_RESTART):
        if said is None:
            return RestartDropped(key.removeprefix(_RESTART))
        tasks = said.get("tasks")
        named = None if tasks is None else tuple(int(task) for task in tasks)
        return RestartSaid(key.removeprefix(_RESTART), bool(said["connector"]), named, bool(said["only_failed"]))
    if key.startswith(_TARGET):
        target = None if said is None else TargetState(said.get("state.v2", said["state"]))
        return TargetSet(key.removeprefix(_TARGET), target)
    if key.startswith(_CONNECTOR):
        return ConnectorConfigured(key.removeprefix(_CONNECTOR), None if said is None else _properties(said))
    if key.startswith(_COMMIT):
        name = key.removeprefix(_COMMIT)
        if said is None:
            return TasksCommitted(name, None)
        generation, offset = int(said["generation"]), int(said["config_offset"])
        return TasksCommitted(name, int(said["tasks"]), generation, offset, _properties(said))
    if key.startswith(_TASK):
        name, task = _task_of(key.removeprefix(_TASK))
        if said is None:
            return TaskDropped(name, task)
        properties = _properties(said)
        splits = _splits_in(orjson.loads(properties[SPLITS]))
        return TaskConfigured(name, task, int(properties[GENERATION]), splits)
    return None


def decode_status(key: bytes | None, value: bytes | None) -> StatusRecord | None:
    """A record of the status topic; as ``decode_config``."""
    name = _text(key)
    said = None if value is None else _object(name, value)
    try:
        return _decode_status(name, said)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableRecord(f"{name[:_SHOWN_CHARS_MAX]}: {error!r}") from None


def _decode_status(key: str, said: Json | None) -> StatusRecord | None:
    if key.startswith(_STATUS_TOPIC):
        topic, found, name = key.removeprefix(_STATUS_TOPIC).partition(_OF_CONNECTOR)
        if not found:
            return None
        if said is None:
            return TopicUsed(name, topic, -1)
        return TopicUsed(name, topic, int(said["topic"]["task"]), int(said["topic"]["discoverTimestamp"]))
    if key.startswith(_STATUS_CONNECTOR):
        return _status_of(key.removeprefix(_STATUS_CONNECTOR), None, said)
    if key.startswith(_STATUS_TASK):
        return _status_of(*_task_of(key.removeprefix(_STATUS_TASK)), said)
    if key.startswith(_WORK):
        name = key.removeprefix(_WORK)
        if said is None:
            return Work(name, "")
        return Work(
            name,
            str(said["kind"]),
            int(said["config_offset"]),
            str(said["guarantee"]),
            int(said["tasks"]),
            _splits_in(said["splits"]),
            str(said["worker_id"]),
            int(said["generation"]),
        )
    return None


def _status_of(name: str, task: int | None, said: Json | None) -> Status:
    if said is None:
        return Status(name, task, None)
    state, trace = RunState(said["state"]), said.get("trace") or ""
    return Status(
        name, task, state, str(trace), str(said["worker_id"]), int(said["generation"]), int(said.get("fenced", 0))
    )


def _splits_in(said: Sequence[Json]) -> tuple[SplitSpec, ...]:
    return tuple(SplitSpec(str(one["id"]), dict(one["detail"])) for one in said)


def _properties(said: Json) -> dict[str, str]:
    return {str(key): str(value) for key, value in said["properties"].items()}


def _task_of(rest: str) -> tuple[str, int]:
    name, _, number = rest.rpartition("-")
    if not name or not number.isascii() or not number.isdigit():
        raise ValueError(f"{number!r} is no task's number")
    return name, int(number)


def _text(key: bytes | None) -> str:
    try:
        return "" if key is None else key.decode()
    except UnicodeDecodeError:
        return ""


def _object(key: str, value: bytes) -> Json:
    try:
        said = orjson.loads(value)
    except ValueError as error:
        raise UnreadableRecord(f"{key[:_SHOWN_CHARS_MAX]}: {error}") from None
    if not isinstance(said, dict):
        raise UnreadableRecord(f"{key[:_SHOWN_CHARS_MAX]}: it is no JSON object")
    version = said.get("version", VERSION)
    if not isinstance(version, int) or version > VERSION:
        raise NewerRecord(
            f"{key[:_SHOWN_CHARS_MAX]} has version {version!r}, and this worker knows {VERSION}: "
            "run the version that wrote it, or a newer one"
        )
    return said
