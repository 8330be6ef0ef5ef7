"""Commands against stand-ins of admin service and producer: what they ask, what they print, and how they end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from libs.cli.tests.conftest import Beside, FakeStub, admin_over
from typer.testing import CliRunner

from headrace.admin_types import ConfigEntry, TopicDescription
from headrace.delivery import DeliveredBatch
from headrace.records import TopicPartition
from headrace_cli.app import app
from headrace_cli.commands.produce import _standard_input
from headrace_cli.exits import CommandFailed
from headrace_cli.session import Session
from headrace_common.core.errors import RequestTimedOut, unknown_topic
from headrace_proto.v1 import broker_pb2, cluster_pb2
from headrace_proto.v1 import controller_pb2 as pb

ID = bytes(range(16))
runner = CliRunner()


class FakeAdmin(Beside):
    """One topic of two partitions on brokers 1 and 2; partition 1 has no leader. Remembers what was changed."""

    def __init__(self, stub: FakeStub) -> None:
        super().__init__(admin_over(stub))
        self.asked: list[tuple[Any, ...]] = []

    def create_topic(self, name: str, *arguments: Any, validate_only: bool) -> TopicDescription:
        self.asked.append(("create", name, *arguments, validate_only))
        partitions = [cluster_pb2.Partition(partition=n, leader=1, replicas=[1]) for n in range(arguments[0] or 1)]
        topic = cluster_pb2.Topic(name=name, topic_id=ID, configs=arguments[2])
        notes = ["fewer replicas than the default"]
        return TopicDescription.of(pb.TopicDescription(topic=topic, partitions=partitions, notes=notes))

    def delete_topic(self, name: str) -> None:
        if name != "flights":
            raise unknown_topic(name)
        self.asked.append(("delete", name))

    def alter_configs(self, changes: Mapping[str, str | None], **what: Any) -> dict[str, ConfigEntry]:
        self.asked.append(("alter", dict(changes), what))
        return self.describe_configs() | {
            name: ConfigEntry.of(pb.ConfigEntry(name=name, value=value or "default", source=pb.DYNAMIC_TOPIC_CONFIG))
            for name, value in changes.items()
        }

    def describe_configs(self, **_: Any) -> dict[str, ConfigEntry]:
        entry = pb.ConfigEntry(name="segment.ms", value="7", source=pb.DEFAULT_CONFIG)
        return {entry.name: ConfigEntry.of(entry)}

    def delete_records(self, offsets: Mapping[tuple[str, int], int]) -> dict[TopicPartition, int]:
        self.asked.append(("trim", dict(offsets)))
        return {TopicPartition(*partition): 30 for partition in offsets}


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch, stub: Any) -> FakeAdmin:
    fake = FakeAdmin(stub)
    monkeypatch.setattr(Session, "admin", lambda self, **_: fake)
    return fake


def out(*argv: str, code: int = 0, stdin: str | None = None) -> str:
    result = runner.invoke(app, list(argv), input=stdin)
    assert result.exit_code == code, result.output
    return result.stdout


def data(*argv: str) -> Any:
    return json.loads(out(*argv, "-o", "json"))


def test_create_asks_for_what_was_said_and_leaves_the_rest_to_the_cluster(admin: FakeAdmin) -> None:
    assert len(data("topic", "create", "a", "-p", "3", "-c", "retention.ms=5")["partitions"]) == 3
    out("topic", "create", "b", "-r", "2", "--dry-run")
    assert admin.asked == [
        ("create", "a", 3, None, {"retention.ms": "5"}, False),
        ("create", "b", None, 2, {}, True),
    ]
    assert "note: fewer replicas" in runner.invoke(app, ["topic", "create", "c"]).stderr


def test_a_topic_is_described_by_its_leaders_and_a_partition_without_one_shows(admin: FakeAdmin) -> None:
    described = data("topic", "describe", "flights", "--segments")
    assert described["records"] == 20
    assert [p["high_watermark"] for p in described["partitions"]] == [30, None]
    assert [p["elr"] for p in described["partitions"]] == [[], [1]]
    assert described["logs"][0]["segments"][0]["base_offset"] == 10
    text = out("topic", "describe", "flights")
    assert "retention.ms=5" in text
    assert text.splitlines()[-1].split()[:2] == ["1", "-"]


def test_segments_have_times_and_whose_they_are(admin: FakeAdmin) -> None:
    [log] = data("topic", "describe", "flights", "--segments")["logs"]
    [row] = log["segments"]
    assert (log["partition"], log["broker"], row["sealed_at_ms"]) == (0, 2, None)
    assert (row["min_timestamp_ms"], row["max_timestamp_ms"]) == (86_400_000, 90_000_000)
    lines = out("topic", "describe", "flights", "--segments").splitlines()
    title, values = lines[lines.index("segments:") + 1 :]
    assert title.split() == [
        "PARTITION",
        "BROKER",
        "BASE",
        "OFFSET",
        "END",
        "OFFSET",
        "SIZE",
        "CREATED",
        "SEALED",
        "FROM",
        "TO",
    ]
    assert values.split() == [
        "0",
        "2",
        "10",
        "30",
        "2.0",
        "KiB",
        "1970-01-01T00:00:00Z",
        "-",
        "1970-01-02T00:00:00Z",
        "1970-01-02T01:00:00Z",
    ]


def test_a_topic_that_is_not_compacted_says_nothing_of_compaction(admin: FakeAdmin) -> None:
    described = data("topic", "describe", "flights")
    assert [p["compaction"] for p in described["partitions"]] == [None, None]
    assert (described["records"], described["size_bytes"]) == (20, 2048)
    [silent] = described["unanswered"]
    assert (silent["broker"], silent["error"]["detail"]) == (1, "it does not answer")
    result = runner.invoke(app, ["topic", "describe", "flights", "--segments"])
    assert "note: logs are not known of broker 1: it does not answer" in result.stderr
    assert "compaction" not in result.stdout


def test_how_far_replicas_are_compacted(admin: FakeAdmin, stub: Any) -> None:
    stub.compaction = broker_pb2.LogCompaction(
        cleaned_to=20, cleanable_to=28, clean_bytes=3000, dirty_bytes=1000, waits_for="a record is too young"
    )
    described = data("topic", "describe", "flights")
    assert described["records"] is None  # offsets have gaps
    compaction = {
        "cleaned_to": 20,
        "cleanable_to": 28,
        "clean_bytes": 3000,
        "dirty_bytes": 1000,
        "dirty_ratio": 0.25,
        "last_compacted_ms": None,
        "stuck": False,
        "waits_for": "a record is too young",
    }
    assert [log["compaction"] for log in described["logs"]] == [compaction]
    assert [p["compaction"] for p in described["partitions"]] == [compaction, None]
    text = out("topic", "describe", "flights")
    assert "too young" not in text
    assert "none since their brokers started; at most 25% dirty; 0 of 1 replica stuck" in text
    assert "1000 B (25%)" in out("topic", "describe", "flights", "--segments")
    stub.compaction = broker_pb2.LogCompaction(
        cleaned_to=20, cleanable_to=28, last_ms=5, waits_for="batch 22 cannot be read", stuck=True
    )
    assert "batch 22 cannot be read" in out("topic", "describe", "flights")
    assert data("topic", "list", "--sizes")["topics"][0]["stuck_compactions"] == 1


def test_topics_with_what_they_hold(admin: FakeAdmin) -> None:
    assert "size_bytes" not in data("topic", "list")["topics"][0]
    [row] = data("topic", "list", "--sizes")["topics"]
    assert (row["size_bytes"], row["replica_bytes"], row["oldest_timestamp_ms"]) == (2048, 2048, 86_400_000)
    title, values = out("topic", "list", "--sizes").splitlines()
    assert title.split() == ["NAME", "PARTITIONS", "SIZE", "ON", "DISK", "OLDEST", "CONFIGS"]
    assert values.split()[:6] == ["flights", "2", "2.0", "KiB", "2.0", "KiB"]


def test_set_changes_and_gives_defaults_back_and_shows_all_without_arguments(admin: FakeAdmin) -> None:
    rows = data("topic", "set", "flights", "retention.ms=9", "segment.bytes=")["configs"]
    assert admin.asked == [
        ("alter", {"retention.ms": "9", "segment.bytes": None}, {"topic": "flights", "validate_only": False})
    ]
    assert [row["name"] for row in rows] == ["retention.ms", "segment.bytes"]
    assert [row["name"] for row in data("topic", "set", "flights")["configs"]] == ["segment.ms"]


def test_deleting_and_trimming_need_a_yes(admin: FakeAdmin) -> None:
    out("topic", "delete", "flights", code=2)
    out("topic", "trim", "flights", "--all", code=2)
    assert admin.asked == []
    out("topic", "delete", "flights", "--yes")
    trimmed = data("topic", "trim", "flights", "--before", "30", "-p", "1", "-y")
    assert trimmed == {"partitions": [{"partition": 1, "log_start_offset": 30, "error": None}]}
    out("topic", "trim", "flights", "--all", "-y")
    assert admin.asked == [
        ("delete", "flights"),
        ("trim", {("flights", 1): 30}),
        ("trim", {("flights", 0): -1, ("flights", 1): -1}),
    ]
    out("topic", "delete", "nothing", "--yes", code=3)


def test_what_would_be_deleted_or_trimmed_is_shown_and_left(admin: FakeAdmin) -> None:
    [flights] = data("topic", "delete", "flights", "--dry-run")["topics"]
    assert flights == {"name": "flights", "partitions": 2, "records": 20}
    first, second = data("topic", "trim", "flights", "--before", "25", "--dry-run")["partitions"]
    assert first == {
        "partition": 0,
        "log_start_offset": 10,
        "new_log_start_offset": 25,
        "offsets_removed": 15,
        "high_watermark": 30,
    }
    assert second["new_log_start_offset"] is None, "nobody answered for it"
    all_of_it = data("topic", "trim", "flights", "--all", "--dry-run")["partitions"]
    assert [row["offsets_removed"] for row in all_of_it] == [20, None]
    assert "nothing was changed" in runner.invoke(app, ["topic", "delete", "flights", "--dry-run"]).stderr
    assert admin.asked == []


def test_an_offset_that_no_partition_reaches_trims_nothing(admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = [{"partition": 0, "high_watermark": 30}, {"partition": 1, "high_watermark": 40}]
    monkeypatch.setattr("headrace_cli.admin_view.describe_topic", lambda *_, **__: {"partitions": ends})
    out("topic", "trim", "flights", "--before", "41", "-y", code=1)
    assert admin.asked == []
    out("topic", "trim", "flights", "--before", "40", "-y")
    assert admin.asked == [("trim", {("flights", 0): 30, ("flights", 1): 40})]


class FakeTimes:
    """Partition 0 has a record after any time, at offset 12; partition 1 has none, and ends at 40."""

    def __enter__(self) -> FakeTimes:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        return {TopicPartition(*tp): 40 for tp in partitions}

    def offsets_for_times(self, times: Mapping[tuple[str, int], int]) -> dict[TopicPartition, Any]:
        assert set(times.values()) == {1_795_255_200_000}
        return {TopicPartition(*tp): SimpleNamespace(offset=12) if tp[1] == 0 else None for tp in times}


def test_trimming_to_a_time_keeps_all_that_is_younger(admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "consumer", lambda self, **_: FakeTimes())
    out("topic", "trim", "flights", "--before-time", "2026-11-21T10:00", "-y")
    out("topic", "trim", "flights", "--before-time", "2026-11-21T10:00", "-p", "0", "-y")
    assert admin.asked == [
        ("trim", {("flights", 0): 12, ("flights", 1): 40}),
        ("trim", {("flights", 0): 12}),
    ]
    for wrong in (("--before-time", "soon"), ("--before-time", "5"), ("--before-time", "1d", "--all"), ()):
        out("topic", "trim", "flights", *wrong, "-y", code=2)
    assert len(admin.asked) == 2


def test_trimming_all_partitions_goes_no_further_than_each_has_records(admin: FakeAdmin) -> None:
    out("topic", "trim", "flights", "--before", "99", "-y")
    assert admin.asked == [("trim", {("flights", 0): 30, ("flights", 1): 99})]
    out("topic", "trim", "flights", "--before", str(2**63), "-y", code=2)


def test_a_cluster_that_is_not_well_says_why_and_ends_with_its_code(admin: FakeAdmin, stub: Any) -> None:
    assert out("cluster", "health") == "healthy: all is there\n"
    stub.judged("degraded", "broker 1 is away")
    assert out("cluster", "health", code=6) == "degraded: broker 1 is away\n"
    stub.judged("unavailable", "nobody leads flights-1")
    assert out("cluster", "health", code=7) == "unavailable: nobody leads flights-1\n"
    status = json.loads(out("cluster", "status", "-o", "json", code=7))
    assert (status["state"], status["active_controller"]) == ("unavailable", 1)
    assert [b["leaders"] for b in status["brokers"]] == [0, 1]
    assert status["troubled"][0]["partition"]["partition"] == 1
    [stuck] = status["stuck_compactions"]
    assert stuck == {"topic": "flights", "partition": 0, "broker": 2, "reason": "batch 7 cannot be read"}
    assert [b["disk_free_bytes"] for b in status["brokers"]] == [None, 1 << 30]
    text = out("cluster", "status", code=7)
    assert "flights-0" in text
    assert "1.0 GiB of 5.0 GiB" in text
    assert "active controller: " in out("cluster", "describe")


def test_brokers_and_logs_show_who_does_not_answer(admin: FakeAdmin, stub: Any) -> None:
    one, two = data("broker", "list")["brokers"]
    assert (one["fenced"], one["error"]["detail"], one["log_count"]) == (True, "it does not answer", None)
    assert (two["rack"], two["log_count"], two["size_bytes"]) == ("rack-a", 1, 2048)
    assert "fenced" in out("broker", "list")
    assert (two["leaders"], two["in_sync"], two["drained"]) == (1, 1, False)
    [log] = data("debug", "dump-log", "--segments")["logs"]
    assert (log["broker"], log["segments"][0]["end_offset"]) == (2, 30)
    assert "2.0 KiB" in out("debug", "dump-log")


@pytest.mark.parametrize("words", [("list",), ("describe", "2")], ids=" ".join)
def test_brokers_are_asked_about_by_one_client(
    admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    opened: list[FakeAdmin] = []

    def open_one(session: Session, **_: Any) -> FakeAdmin:
        opened.append(admin)
        return admin

    monkeypatch.setattr(Session, "admin", open_one)
    out("broker", *words)
    assert len(opened) == 1


def test_cluster_settings_show_what_is_not_default_unless_all_are_wanted(admin: FakeAdmin) -> None:
    assert data("cluster", "configs") == {"configs": []}
    assert [row["name"] for row in data("cluster", "configs", "--all")["configs"]] == ["segment.ms"]
    out("cluster", "configs", "num.partitions=3")
    out("broker", "configs", "2", "log.cleaner.enable=", "--dry-run")
    assert admin.asked == [
        ("alter", {"num.partitions": "3"}, {"broker": None, "validate_only": False}),
        ("alter", {"log.cleaner.enable": None}, {"broker": 2, "validate_only": True}),
    ]
    assert data("broker", "configs", "2") == {"configs": []}


class FakeProducer:
    """Acknowledges at once, or fails the ``fails``-th record."""

    def __init__(self, fails: int | None, **settings: Any) -> None:
        self.settings = settings
        self.fails = fails
        self.sent: list[tuple[Any, ...]] = []

    def partitions_for(self, topic: str) -> int:
        if topic == "missing":
            raise unknown_topic(topic)
        return 5

    def __enter__(self) -> FakeProducer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def send(self, topic: str, value: Any, key: Any, **how: Any) -> None:
        self.sent.append((key, value, how["headers"], how["partition"]))
        error = RequestTimedOut("no answer came") if len(self.sent) == self.fails else None
        self.settings["on_delivery"](DeliveredBatch(topic, 0, 0, 1, 0, error))

    def flush(self, timeout: float) -> None:
        self.settings["flushed"] = timeout


@pytest.fixture
def producers(monkeypatch: pytest.MonkeyPatch) -> list[FakeProducer]:
    made: list[FakeProducer] = []

    def make(self: Session, **settings: Any) -> FakeProducer:
        made.append(FakeProducer(None, **settings))
        return made[-1]

    monkeypatch.setattr(Session, "producer", make)
    return made


def test_lines_are_sent_as_they_are(producers: list[FakeProducer], tmp_path: Any) -> None:
    (tmp_path / "lines").write_bytes(b"one\r\ntwo\n\n\xff\x00three")
    out("produce", "t", str(tmp_path / "lines"), "-k", "k", "-H", "a=1", "--compression", "zstd", "-p", "4")
    headers = [("a", b"1")]
    assert producers[0].sent == [(b"k", value, headers, 4) for value in (b"one", b"two", b"", b"\xff\x00three")]
    assert producers[0].settings["compression_type"] == "zstd"
    assert producers[0].settings["flushed"] == 60


def test_arguments_that_are_no_text_are_sent_as_their_bytes(producers: list[FakeProducer]) -> None:
    given = b"\xff".decode("utf-8", "surrogateescape")  # what Python makes of such an argument
    out("produce", "t", "-v", given, "-k", given, "-H", f"a={given}", "-H", "a=2")
    assert producers[0].sent == [(b"\xff", b"\xff", [("a", b"\xff"), ("a", b"2")], None)]


def test_a_closed_standard_input_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(CommandFailed, match="standard input is closed"):
        _standard_input()


def test_keys_files_values_and_json(producers: list[FakeProducer], tmp_path: Any) -> None:
    assert "2 records" in runner.invoke(app, ["produce", "t", "--key-separator", "::"], input="a::1\nb::2::3\n").stderr
    (tmp_path / "cat").write_bytes(b"\x89PNG\n\n")
    out("produce", "t", str(tmp_path / "cat"), "--whole")
    out("produce", "t", "-v", "x", "-v", "y")
    out("produce", "t", "--json", stdin='{"key": null, "value": {"a": 1}, "headers": {"h": "v"}, "partition": 3}\n')
    assert [p.sent for p in producers] == [
        [(b"a", b"1", None, None), (b"b", b"2::3", None, None)],
        [(None, b"\x89PNG\n\n", None, None)],
        [(None, b"x", None, None), (None, b"y", None, None)],
        [(None, b'{"a":1}', [("h", b"v")], 3)],
    ]
    assert data("produce", "t", "-v", "x")["records"] == 1


def test_a_line_without_its_key_is_named(producers: list[FakeProducer]) -> None:
    result = runner.invoke(app, ["produce", "t", "--key-separator", ":"], input="a:1\nb\n")
    assert result.exit_code == 2
    assert "line 2 of standard input has no ':'" in result.stderr


@pytest.mark.parametrize("how", [(), ("--json",), ("-o", "json"), ("-v", "x")])
def test_a_missing_topic_is_told_before_anything_is_read(producers: list[FakeProducer], how: tuple[str, ...]) -> None:
    result = runner.invoke(app, ["produce", "missing", *how], input="")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("error: topic 'missing' does not exist; ")
    assert producers[0].sent == []


def test_a_record_that_fails_ends_the_command_with_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "producer", lambda self, **settings: FakeProducer(2, **settings))
    result = runner.invoke(app, ["produce", "t", "-v", "1", "-v", "2", "-v", "3"])
    assert result.exit_code == 5
    assert result.stderr.startswith("error: no answer came\n")
