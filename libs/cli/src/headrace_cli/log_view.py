"""Logs, their segments and how far they are compacted, as plain rows; and what of it people are shown in a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace_cli.output import age_for_people, bytes_for_people, counted, moment_for_people

if TYPE_CHECKING:
    from headrace.admin_types import BrokerLogs, CompactionInfo, LogInfo, SegmentInfo

Row = dict[str, Any]
Held = Mapping[tuple[int, int], "LogInfo"]
"""Logs of one topic by broker and partition."""


def held(brokers: Sequence[BrokerLogs]) -> Held:
    """The logs of one topic, from the answers about it."""
    return {(b.broker_id, log.partition): log for b in brokers for log in b.logs}


def silent(brokers: Sequence[BrokerLogs]) -> list[str]:
    """Brokers whose logs are not known, and why."""
    return [f"broker {b.broker_id}: {b.error}" for b in brokers if b.error]


def extent(log: LogInfo | None) -> Row:
    """What the leader of a partition holds; None: nobody told."""
    if log is None:
        return dict.fromkeys(("start_offset", "end_offset", "size_bytes", "oldest_timestamp_ms"))
    return {
        "start_offset": log.log_start_offset,
        "end_offset": log.log_end_offset,
        "size_bytes": log.size_bytes,
        "oldest_timestamp_ms": log.oldest_timestamp_ms,
    }


def log(log: LogInfo) -> Row:
    """All that is known of one log but its segments."""
    return {
        "state": log.state,
        "start_offset": log.log_start_offset,
        "end_offset": log.log_end_offset,
        "high_watermark": log.high_watermark,
        "last_stable_offset": log.last_stable_offset,
        "leader_epoch": log.leader_epoch,
        "size_bytes": log.size_bytes,
        "oldest_timestamp_ms": log.oldest_timestamp_ms,
        "cleaned_to": None if log.compaction is None else log.compaction.cleaned_to,
        "topic_id": log.topic_id.hex(),
        "note": log.note,
    }


def segments(logs: Held) -> list[Row]:
    """The segments of every replica, by partition and broker."""
    return [_place(place, segment(one)) for place, log in _ordered(logs) for one in log.segments]


def segment(one: SegmentInfo) -> Row:
    """One segment."""
    return {
        "base_offset": one.base_offset,
        "end_offset": one.end_offset,
        "size_bytes": one.size_bytes,
        "created_at_ms": one.created_at_ms,
        "sealed_at_ms": one.sealed_at_ms,
        "min_timestamp_ms": _time(one.min_timestamp_ms),
        "max_timestamp_ms": _time(one.max_timestamp_ms),
    }


def compactions(logs: Held) -> list[Row]:
    """How far each replica is compacted, by partition and broker; none if the topic is not."""
    return [_place(place, _compaction(log.compaction)) for place, log in _ordered(logs) if log.compaction is not None]


def _compaction(one: CompactionInfo) -> Row:
    return {
        "cleaned_to": one.cleaned_to,
        "cleanable_to": one.cleanable_to,
        "clean_bytes": one.clean_bytes,
        "dirty_bytes": one.dirty_bytes,
        "dirty_ratio": round(one.dirty_ratio, 4),
        "last_compacted_ms": one.last_ms,
        "stuck": one.stuck,
        "waits_for": one.waits_for,
    }


def total(logs: Held, leaders: Mapping[int, int | None]) -> Row:
    """What a topic holds: bytes at its leaders and on all brokers, and its oldest record."""
    led = [log for (broker, partition), log in logs.items() if leaders.get(partition) == broker]
    oldest = [log.oldest_timestamp_ms for log in led if log.oldest_timestamp_ms is not None]
    return {
        "size_bytes": sum(log.size_bytes for log in led),
        "replica_bytes": sum(log.size_bytes for log in logs.values()),
        "oldest_timestamp_ms": min(oldest, default=None),
    }


# --- for people -------------------------------------------------------------------------------------------------


def described_for_people(topic: Row, *, segments: bool, now_ms: int) -> Row:
    """A described topic with sizes, ages and times as people read them, without what is seldom of interest."""
    shown = sizes_for_people(topic, now_ms)
    rows = {name: shown.pop(name, []) for name in ("partitions", "compaction", "segments")}
    if rows["compaction"]:
        shown["compacted"] = _summary(rows["compaction"], now_ms)
    for rare in ("adding", "removing", "recovering"):
        if not any(row.get(rare) for row in rows["partitions"]):
            rows["partitions"] = [{k: v for k, v in row.items() if k != rare} for row in rows["partitions"]]
    shown["partitions"] = [sizes_for_people(row, now_ms) for row in rows["partitions"]]
    told = rows["compaction"] if segments else [row for row in rows["compaction"] if row["stuck"]]
    shown["compaction"] = [_compaction_for_people(row, now_ms) for row in told]
    shown["segments"] = [segment_for_people(row) for row in rows["segments"]] if segments else []
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
        "from": moment_for_people(row["min_timestamp_ms"]),
        "to": moment_for_people(row["max_timestamp_ms"]),
    }


def _summary(rows: Sequence[Row], now_ms: int) -> str:
    """All replicas in one line."""
    last = max((row["last_compacted_ms"] for row in rows if row["last_compacted_ms"] is not None), default=None)
    when = "none since their brokers started" if last is None else f"last {age_for_people(now_ms - last)} ago"
    dirty = max(row["dirty_ratio"] for row in rows)
    stuck = sum(row["stuck"] for row in rows)
    return f"{when}; at most {dirty:.0%} dirty; {stuck} of {counted(len(rows), 'replica')} stuck"


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


def _ordered(logs: Held) -> list[tuple[tuple[int, int], LogInfo]]:
    return sorted(logs.items(), key=lambda item: (item[0][1], item[0][0]))


def _place(place: tuple[int, int], row: Row) -> Row:
    broker, partition = place
    return {"partition": partition, "broker": broker} | row


def _time(ms: int) -> int | None:
    return None if ms < 0 else ms
