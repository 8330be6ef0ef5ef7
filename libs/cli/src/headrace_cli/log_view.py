"""What people are shown of logs, their segments, and how far they are compacted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace_cli.output import age_for_people, bytes_for_people, format_count, moment_for_people

Row = dict[str, Any]


def segments(logs: Sequence[Row]) -> list[Row]:
    """The segments of these logs, each with its place."""
    return [_place(log) | segment for log in logs for segment in log["segments"]]


def compactions(logs: Sequence[Row]) -> list[Row]:
    """How far these logs are compacted, each with its place; none if their topics are not."""
    return [_place(log) | log["compaction"] for log in logs if log["compaction"] is not None]


def format_topic(topic: Row, *, with_segments: bool, now_ms: int) -> Row:
    """A described topic with sizes, ages and times as people read them, without what is seldom of interest."""
    hidden = ("internal", "notes", "partitions", "logs", "unanswered")
    shown = {k: v for k, v in sizes_for_people(topic, now_ms).items() if k not in hidden}
    compacted = compactions(topic["logs"])
    if compacted:
        shown["compacted"] = _summary(compacted, now_ms)
    rare = {name for name in ("adding", "removing", "recovering") if not any(p[name] for p in topic["partitions"])}
    seldom = rare | {"last_stable_offset", "compaction"}
    first = ("partition", "leader", "leader_epoch", "replicas", "isr", "elr")
    ordered = [{name: p[name] for name in first} | p for p in topic["partitions"]]
    partitions = [{name: value for name, value in p.items() if name not in seldom} for p in ordered]
    shown["partitions"] = [sizes_for_people(row, now_ms) for row in partitions]
    told = compacted if with_segments else [row for row in compacted if row["stuck"]]
    shown["compaction"] = [_compaction_for_people(row, now_ms) for row in told]
    shown["segments"] = [segment_for_people(row) for row in segments(topic["logs"])]
    return {name: value for name, value in shown.items() if value != []}


def sizes_for_people(row: Row, now_ms: int) -> Row:
    """``size_bytes`` as ``size``, ``oldest_timestamp_ms`` as the age ``oldest``."""
    shown = dict(row)
    for name, shorter in (("size_bytes", "size"), ("replica_bytes", "on_disk")):
        if name in shown:
            size = shown.pop(name)
            shown[shorter] = None if size is None else bytes_for_people(size)
    if "oldest_timestamp_ms" in shown:
        oldest = shown.pop("oldest_timestamp_ms")
        shown["oldest"] = None if oldest is None else age_for_people(now_ms - oldest)
    return shown


def segment_for_people(row: Row) -> Row:
    """Times instead of milliseconds; a segment without ``sealed`` is the one that is written."""
    shown = {k: v for k, v in row.items() if not k.endswith("_ms") and k != "size_bytes"}
    return shown | {
        "size": bytes_for_people(row["size_bytes"]),
        "created": moment_for_people(row["created_at_ms"]),
        "sealed": moment_for_people(row["sealed_at_ms"]),
        "from": moment_for_people(_time(row["min_timestamp_ms"])),
        "to": moment_for_people(_time(row["max_timestamp_ms"])),
    }


def logs_for_people(logs: Sequence[Row], with_segments: bool, now_ms: int) -> list[Row]:
    if with_segments:
        return [_whose(log) | segment_for_people(one) for log in logs for one in log["segments"]]
    names = ("state", "log_start_offset", "log_end_offset", "high_watermark", "last_stable_offset", "leader_epoch")
    rest = ("size_bytes", "oldest_timestamp_ms", "topic_id", "note")
    return [
        _whose(log)
        | {name: log[name] for name in names}
        | {"cleaned_to": log["compaction"] and log["compaction"]["cleaned_to"]}
        | sizes_for_people({name: log[name] for name in rest}, now_ms)
        for log in logs
    ]


def _whose(log: Row) -> Row:
    return {name: log[name] for name in ("broker", "topic", "partition")}


def _summary(rows: Sequence[Row], now_ms: int) -> str:
    """All replicas in one line."""
    last = max((row["last_compacted_ms"] for row in rows if row["last_compacted_ms"] is not None), default=None)
    when = "none since their brokers started" if last is None else f"last {age_for_people(now_ms - last)} ago"
    dirty = max(row["dirty_ratio"] for row in rows)
    stuck = sum(row["stuck"] for row in rows)
    return f"{when}; at most {dirty:.0%} dirty; {stuck} of {format_count(len(rows), 'replica')} stuck"


def _compaction_for_people(row: Row, now_ms: int) -> Row:
    last = row["last_compacted_ms"]
    return {
        "partition": row["partition"],
        "broker": row["broker"],
        "cleaned_to": row["cleaned_to"],
        "cleanable_to": row["cleanable_to"],
        "dirty": f"{bytes_for_people(row['dirty_bytes'])} ({row['dirty_ratio']:.0%})",
        "compacted": None if last is None else f"{age_for_people(now_ms - last)} ago",
        "stuck": row["stuck"],
        "waits_for": row["waits_for"],
    }


def _place(log: Row) -> Row:
    return {"partition": log["partition"], "broker": log["broker"]}


def _time(ms: int) -> int | None:
    return None if ms < 0 else ms
