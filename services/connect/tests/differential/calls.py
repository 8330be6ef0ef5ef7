"""
Calls of Connect's REST interface, one after the other: made to Kafka's own runtime, and to ours.

Both have a source ``FileStreamSource`` (``file``, ``topic``, ``batch.size``) and a sink ``FileStreamSink`` (``file``,
``topics``), and no connector at first. ``FILE`` stands for a file that has lines.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

JSON: Final = {"content-type": "application/json"}
FILE: Final = "@FILE@"
SOURCE: Final = {"connector.class": "FileStreamSource", "file": FILE, "topic": "lines", "tasks.max": "1"}
SINK: Final = {"connector.class": "FileStreamSink", "file": f"{FILE}.out", "topics": "lines", "tasks.max": "1"}

Holds = Callable[[Any], bool]


@dataclass(frozen=True)
class Call:
    """One request, and when its answer may be looked at."""

    label: str
    """Unique."""
    method: str
    path: str
    body: Any = None
    """JSON, or bytes as they are; None: there is none."""
    headers: dict[str, str] = field(default_factory=lambda: dict(JSON))
    until: Holds | None = None
    """Asked again until this holds of the body."""
    until_status: int | None = None
    """Asked again until the status is this."""
    here: Any = None
    """The body for ours, where it is another one."""

    def content(self, file: str, *, ours: bool) -> bytes | None:
        """The body as it is sent, with the file in its place."""
        body = self.here if ours and self.here is not None else self.body
        if body is None or isinstance(body, bytes):
            return body
        return json.dumps(body).replace(FILE, file).encode()


def _runs(body: Any) -> bool:
    return body["connector"]["state"] == "RUNNING" and [task["state"] for task in body["tasks"]] == ["RUNNING"]


def _is(state: str) -> Holds:
    def holds(body: Any) -> bool:
        return body["connector"]["state"] == state and all(task["state"] == state for task in body["tasks"])

    return holds


def _has_tasks(body: Any) -> bool:
    return bool(body["tasks"])


def _create(name: Any, config: Any, **more: Any) -> Any:
    return {"name": name, "config": config, **more}


CALLS: Final[tuple[Call, ...]] = (
    Call("root", "GET", "/"),
    Call("health", "GET", "/health", until_status=200),
    Call("no such path", "GET", "/nothing"),
    Call("no such verb", "PUT", "/connectors"),
    Call("delete all", "DELETE", "/connectors"),
    Call("list none", "GET", "/connectors"),
    Call("list none expanded", "GET", "/connectors?expand=info&expand=status"),
    # --- create
    Call("create", "POST", "/connectors", _create("s1", SOURCE), until_status=201),
    Call("create again", "POST", "/connectors", _create("s1", SOURCE)),
    Call("status", "GET", "/connectors/s1/status", until=_runs, until_status=200),
    Call("create without a body", "POST", "/connectors"),
    Call("create of a text", "POST", "/connectors", b'"a"'),
    Call("create of a list", "POST", "/connectors", b"[]"),
    Call("create of half JSON", "POST", "/connectors", b'{"name": "x"'),
    Call("create of two names", "POST", "/connectors", b'{"name": "a", "name": "a2", "config": {}}'),
    Call("create without a config", "POST", "/connectors", {"name": "x"}),
    Call("create without a name", "POST", "/connectors", {"config": SOURCE}),
    Call("create with an empty name", "POST", "/connectors", _create("", SOURCE)),
    Call("create with a name of spaces", "POST", "/connectors", _create("  ", SOURCE)),
    Call("create with another name inside", "POST", "/connectors", _create("x", {**SOURCE, "name": "y"})),
    Call("create with something unknown", "POST", "/connectors", _create("x", SOURCE, more=1)),
    Call("create without a class", "POST", "/connectors", _create("x", {"topic": "lines"})),
    Call("create of an unknown class", "POST", "/connectors", _create("x", {**SOURCE, "connector.class": "Nobody"})),
    Call("create without what it needs", "POST", "/connectors", _create("x", {"connector.class": "FileStreamSource"})),
    Call("create with a wrong number", "POST", "/connectors", _create("x", {**SOURCE, "tasks.max": "many"})),
    Call("create with too few tasks", "POST", "/connectors", _create("x", {**SOURCE, "tasks.max": "0"})),
    Call("create with a null", "POST", "/connectors", _create("x", {**SOURCE, "batch.size": None})),
    Call("create with an object inside", "POST", "/connectors", _create("x", {**SOURCE, "file": {"a": 1}})),
    Call("create with numbers", "POST", "/connectors", _create("s2", {**SOURCE, "tasks.max": 1, "batch.size": 7})),
    Call("numbers are texts", "GET", "/connectors/s2/config"),
    Call("create with a wrong state", "POST", "/connectors", _create("x", SOURCE, initial_state="sleeping")),
    Call("create stopped", "POST", "/connectors", _create("s3", SOURCE, initial_state="stopped")),
    Call("status of a stopped one", "GET", "/connectors/s3/status", until=_is("STOPPED"), until_status=200),
    Call("create paused", "POST", "/connectors", _create("s4", SOURCE, initial_state="PAUSED")),
    Call("create as plain text", "POST", "/connectors", _create("x", SOURCE), {"content-type": "text/plain"}),
    Call("create without a type", "POST", "/connectors", _create("x", SOURCE), {}),
    Call("create with spaces around the name", "POST", "/connectors", _create(" s5 ", SOURCE)),
    Call("spaces are gone", "GET", "/connectors/s5", until=_has_tasks),
    Call("create with a space in the name", "POST", "/connectors", _create("s 6", SOURCE)),
    Call("get with a space in the name", "GET", "/connectors/s%206", until=_has_tasks),
    Call("create with a slash in the name", "POST", "/connectors", _create("s/7", SOURCE)),
    Call("get with a slash in the name", "GET", "/connectors/s%2F7"),
    Call("create with a percent in the name", "POST", "/connectors", _create("s%2F8", SOURCE)),
    Call("get with a percent in the name", "GET", "/connectors/s%252F8"),
    Call("create with letters of others", "POST", "/connectors", _create("süß", SOURCE)),
    Call("get with letters of others", "GET", "/connectors/s%C3%BC%C3%9F", until=_has_tasks),
    Call("create with a control character", "POST", "/connectors", _create("s\n9", SOURCE)),
    Call("create with a name of 300", "POST", "/connectors", _create("s" * 300, SOURCE)),
    Call("create with two dots", "POST", "/connectors", _create("..", SOURCE)),
    # --- read
    Call("get", "GET", "/connectors/s1"),
    Call("get nobody", "GET", "/connectors/nobody"),
    Call("config", "GET", "/connectors/s1/config"),
    Call("config of nobody", "GET", "/connectors/nobody/config"),
    Call("status of nobody", "GET", "/connectors/nobody/status"),
    Call("tasks", "GET", "/connectors/s1/tasks", until=bool),
    Call("tasks of nobody", "GET", "/connectors/nobody/tasks"),
    Call("tasks-config", "GET", "/connectors/s1/tasks-config"),
    Call("tasks-config of nobody", "GET", "/connectors/nobody/tasks-config"),
    Call("task status", "GET", "/connectors/s1/tasks/0/status"),
    Call("task status of none", "GET", "/connectors/s1/tasks/9/status"),
    Call("task status of no number", "GET", "/connectors/s1/tasks/x/status"),
    Call("task status of nobody", "GET", "/connectors/nobody/tasks/0/status"),
    Call("expand info", "GET", "/connectors?expand=info"),
    Call("expand both", "GET", "/connectors?expand=info&expand=status", until=lambda body: "status" in body["s1"]),
    Call("expand something", "GET", "/connectors?expand=something"),
    Call("parameters that nobody reads", "GET", "/connectors?something=1"),
    # --- change
    Call("put the same", "PUT", "/connectors/s1/config", SOURCE),
    Call("put another", "PUT", "/connectors/s1/config", {**SOURCE, "batch.size": "10"}),
    Call("put a new one", "PUT", "/connectors/s10/config", SOURCE),
    Call("put with another name", "PUT", "/connectors/s1/config", {**SOURCE, "name": "other"}),
    Call("put without a body", "PUT", "/connectors/s1/config"),
    Call("put a list", "PUT", "/connectors/s1/config", []),
    Call("put nothing", "PUT", "/connectors/s1/config", {}),
    Call("put what is wrong", "PUT", "/connectors/s1/config", {**SOURCE, "tasks.max": "-1"}),
    Call("patch", "PATCH", "/connectors/s1/config", {"batch.size": "11"}),
    Call("patch away", "PATCH", "/connectors/s1/config", {"batch.size": None}),
    Call("patch what is needed away", "PATCH", "/connectors/s1/config", {"topic": None}),
    Call("patch the name", "PATCH", "/connectors/s1/config", {"name": "other"}),
    Call("patch nobody", "PATCH", "/connectors/nobody/config", {"batch.size": "11"}),
    Call("after patches", "GET", "/connectors/s1/config"),
    # --- run
    Call("restart", "POST", "/connectors/s1/restart", until_status=204),
    Call("restart nobody", "POST", "/connectors/nobody/restart"),
    Call("restart with tasks", "POST", "/connectors/s1/restart?includeTasks=true", until_status=202),
    Call("restart what failed", "POST", "/connectors/s1/restart?onlyFailed=true&includeTasks=true"),
    Call("restart with tasks of nobody", "POST", "/connectors/nobody/restart?includeTasks=true"),
    Call("runs again", "GET", "/connectors/s1/status", until=_runs, until_status=200),
    Call("restart a task", "POST", "/connectors/s1/tasks/0/restart", until_status=204),
    Call("restart no task", "POST", "/connectors/s1/tasks/9/restart"),
    Call("restart a task of nobody", "POST", "/connectors/nobody/tasks/0/restart"),
    Call("pause", "PUT", "/connectors/s1/pause"),
    Call("pause again", "PUT", "/connectors/s1/pause"),
    Call("is paused", "GET", "/connectors/s1/status", until=_is("PAUSED"), until_status=200),
    Call("pause nobody", "PUT", "/connectors/nobody/pause"),
    Call("resume", "PUT", "/connectors/s1/resume"),
    Call("resume nobody", "PUT", "/connectors/nobody/resume"),
    Call("is resumed", "GET", "/connectors/s1/status", until=_runs, until_status=200),
    Call("topics", "GET", "/connectors/s1/topics"),
    Call("topics of nobody", "GET", "/connectors/nobody/topics"),
    Call("reset topics", "PUT", "/connectors/s1/topics/reset"),
    Call("reset topics of nobody", "PUT", "/connectors/nobody/topics/reset"),
    # --- offsets
    Call("offsets", "GET", "/connectors/s1/offsets", until=lambda body: body["offsets"]),
    Call("offsets of nobody", "GET", "/connectors/nobody/offsets"),
    Call("offsets while it runs", "DELETE", "/connectors/s1/offsets"),
    Call(
        "alter while it runs",
        "PATCH",
        "/connectors/s1/offsets",
        {"offsets": [{"partition": {"filename": FILE}, "offset": {"position": 0}}]},
        here={"offsets": [{"partition": {"split": FILE}, "offset": {"position": 0}}]},
    ),
    Call("stop", "PUT", "/connectors/s1/stop"),
    Call("stop again", "PUT", "/connectors/s1/stop"),
    Call("stop nobody", "PUT", "/connectors/nobody/stop"),
    Call("is stopped", "GET", "/connectors/s1/status", until=_is("STOPPED"), until_status=200),
    Call("get a stopped one", "GET", "/connectors/s1", until=lambda body: not body["tasks"]),
    Call("tasks of a stopped one", "GET", "/connectors/s1/tasks"),
    Call(
        "alter",
        "PATCH",
        "/connectors/s1/offsets",
        {"offsets": [{"partition": {"filename": FILE}, "offset": {"position": 0}}]},
        until_status=200,
        here={"offsets": [{"partition": {"split": FILE}, "offset": {"position": 0}}]},
    ),
    Call("alter nothing", "PATCH", "/connectors/s1/offsets", {"offsets": []}),
    Call("alter without offsets", "PATCH", "/connectors/s1/offsets", {}),
    Call("alter without a body", "PATCH", "/connectors/s1/offsets"),
    Call("alter with a text", "PATCH", "/connectors/s1/offsets", {"offsets": "all"}),
    Call("alter something unknown", "PATCH", "/connectors/s1/offsets", {"offsets": [{"part": 1}]}),
    Call("alter nobody", "PATCH", "/connectors/nobody/offsets", {"offsets": [{"partition": {}, "offset": {}}]}),
    Call("reset", "DELETE", "/connectors/s1/offsets", until_status=200),
    Call("reset nobody", "DELETE", "/connectors/nobody/offsets"),
    Call("offsets after that", "GET", "/connectors/s1/offsets"),
    # --- a sink
    Call("create a sink", "POST", "/connectors", _create("k1", SINK)),
    Call("sink runs", "GET", "/connectors/k1/status", until=_runs, until_status=200),
    Call("sink", "GET", "/connectors/k1", until=lambda body: body["tasks"]),
    Call("stop the sink", "PUT", "/connectors/k1/stop"),
    Call("sink is stopped", "GET", "/connectors/k1/status", until=_is("STOPPED"), until_status=200),
    Call(
        "alter a sink",
        "PATCH",
        "/connectors/k1/offsets",
        {"offsets": [{"partition": {"kafka_topic": "lines", "kafka_partition": "0"}, "offset": {"kafka_offset": 1}}]},
        until_status=200,
    ),
    Call("offsets of a sink", "GET", "/connectors/k1/offsets"),
    *(
        Call(f"alter a sink: {what}", "PATCH", "/connectors/k1/offsets", {"offsets": [pair]})
        for what, pair in {
            "no partition": {"offset": {"kafka_offset": 1}},
            "no topic": {"partition": {"kafka_partition": 0}, "offset": None},
            "no number": {"partition": {"kafka_topic": "lines"}, "offset": None},
            "null topic": {"partition": {"kafka_topic": None, "kafka_partition": 0}, "offset": None},
            "number is a text": {"partition": {"kafka_topic": "lines", "kafka_partition": "x"}, "offset": None},
            "no offset in it": {"partition": {"kafka_topic": "lines", "kafka_partition": 0}, "offset": {"at": 1}},
            "offset is a text": {
                "partition": {"kafka_topic": "lines", "kafka_partition": 0},
                "offset": {"kafka_offset": "x"},
            },
        }.items()
    ),
    # --- plugins
    Call("plugins", "GET", "/connector-plugins"),
    Call("all plugins", "GET", "/connector-plugins?connectorsOnly=false"),
    Call("settings of a plugin", "GET", "/connector-plugins/FileStreamSource/config"),
    Call("settings of no plugin", "GET", "/connector-plugins/Nobody/config"),
    Call(
        "settings of a transform",
        "GET",
        "/connector-plugins/org.apache.kafka.connect.transforms.MaskField$Value/config",
    ),
    Call("settings of a converter", "GET", "/connector-plugins/org.apache.kafka.connect.json.JsonConverter/config"),
    Call("validate", "PUT", "/connector-plugins/FileStreamSource/config/validate", {**SOURCE, "name": "v"}),
    Call(
        "validate what is wrong",
        "PUT",
        "/connector-plugins/FileStreamSource/config/validate",
        {"connector.class": "FileStreamSource", "name": "v", "tasks.max": "many"},
    ),
    Call(
        "validate under a longer name",
        "PUT",
        "/connector-plugins/FileStreamSourceConnector/config/validate",
        {**SOURCE, "name": "v"},
    ),
    Call("validate another class", "PUT", "/connector-plugins/FileStreamSink/config/validate", SOURCE),
    Call("validate without a class", "PUT", "/connector-plugins/FileStreamSource/config/validate", {"topic": "t"}),
    Call("validate nobody", "PUT", "/connector-plugins/Nobody/config/validate", {"connector.class": "Nobody"}),
    Call("validate without a body", "PUT", "/connector-plugins/FileStreamSource/config/validate"),
    # --- loggers
    Call("loggers", "GET", "/admin/loggers"),
    Call("root logger", "GET", "/admin/loggers/root"),
    Call("no such logger", "GET", "/admin/loggers/nobody.at.all"),
    Call("set a logger", "PUT", "/admin/loggers/some.logger", {"level": "debug"}),
    Call("get a logger", "GET", "/admin/loggers/some.logger"),
    Call("set no level", "PUT", "/admin/loggers/some.logger", {}),
    Call("set a wrong level", "PUT", "/admin/loggers/some.logger", {"level": "loud"}),
    Call("set everywhere", "PUT", "/admin/loggers/some.logger?scope=cluster", {"level": "WARN"}),
    # --- delete
    Call("delete", "DELETE", "/connectors/s2"),
    Call("delete again", "DELETE", "/connectors/s2", until_status=404),
    Call("get what was deleted", "GET", "/connectors/s2", until_status=404),
    Call("status of what was deleted", "GET", "/connectors/s2/status", until_status=404),
)
