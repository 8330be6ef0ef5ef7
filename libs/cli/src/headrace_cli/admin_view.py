"""
What commands ask the admin service, as plain rows for people and programs. The only user of ``AdminClient``'s types.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from headrace_cli import log_view
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_common.core.problems import problem_body

if TYPE_CHECKING:
    from headrace import AdminClient, Consumer
    from headrace.admin_types import BrokerLogs, ConfigEntry, LogInfo, PartitionInfo, TopicDescription

_SOURCES: Final = {
    "default": "default",
    "static_broker": "static",
    "dynamic_default_broker": "cluster",
    "dynamic_broker": "broker",
    "dynamic_topic": "topic",
}
"""Where a setting's value is from: as ``AdminClient`` has it, and as JSON does."""

TrimOffsets = dict[tuple[str, int], int]
"""By topic and partition: what is below goes; -1: all there is."""
Row = dict[str, Any]


# --- topics ---------------------------------------------------------------------------------------------------


def create_topic(
    admin: AdminClient,
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: Mapping[str, str],
    *,
    dry_run: bool,
) -> Row:
    """The topic as it was made, or would be."""
    return topic_row(admin.create_topic(name, partitions, replication_factor, configs, validate_only=dry_run))


def topic_there(admin: AdminClient, name: str) -> Row:
    """The topic that was to be made, in the same words."""
    return topic_row(admin.describe_topic(name))


def list_topics(admin: AdminClient, internal: bool, *, sizes: bool = False) -> list[Row]:
    """All topics; with ``sizes`` brokers are asked for all their logs."""
    topics = admin.list_topics(include_internal=internal)
    rows = [
        {
            "name": t.name,
            "id": t.topic_id.hex(),
            "partitions": t.partitions,
            "internal": t.internal,
            "configs": _by_name(t.configs),
        }
        for t in topics
    ]
    if not sizes:
        return rows
    of: dict[bytes, list[LogInfo]] = {t.topic_id: [] for t in topics}
    for broker in admin.describe_logs():
        for log in broker.logs:
            of.get(log.topic_id, []).append(log)
    return [row | _holds(of[topic.topic_id]) for row, topic in zip(rows, topics, strict=True)]


def _holds(logs: list[LogInfo]) -> Row:
    """Who leads is not asked: the longest log of a partition stands for it."""
    longest: dict[int, LogInfo] = {}
    for log in logs:
        if log.partition not in longest or log.log_end_offset > longest[log.partition].log_end_offset:
            longest[log.partition] = log
    oldest = [log.oldest_timestamp_ms for log in longest.values() if log.oldest_timestamp_ms is not None]
    return {
        "size_bytes": sum(log.size_bytes for log in longest.values()),
        "replica_bytes": sum(log.size_bytes for log in logs),
        "oldest_timestamp_ms": min(oldest, default=None),
        "stuck_compactions": sum(log.compaction is not None and log.compaction.stuck for log in logs),
    }


def describe_topic(admin: AdminClient, name: str, *, segments: bool = False) -> Row:
    """
    A topic with its settings, its partitions, what their leaders hold, and the logs of all replicas. ``records`` is
    None where compaction leaves gaps between offsets.
    """
    topic = admin.describe_topic(name)
    brokers = admin.describe_logs(topics=[name], segments=segments)
    logs = log_view.logs(brokers, {topic.topic_id: name})
    leaders = {p.partition: p.leader for p in topic.partitions}
    led = {log["partition"]: log for log in logs if log["broker"] == leaders.get(log["partition"])}
    described = topic_row(topic, led)
    counts = [
        p["high_watermark"] - p["log_start_offset"] for p in described["partitions"] if p["high_watermark"] is not None
    ]
    compacted = any(log["compaction"] is not None for log in logs)
    holders = {replica for p in topic.partitions for replica in p.replicas}
    return {
        **described,
        "records": None if compacted else sum(counts),
        **log_view.total(logs, leaders),
        "logs": logs,
        "unanswered": log_view.unanswered([b for b in brokers if b.broker_id in holders]),
    }


def set_topic_configs(admin: AdminClient, name: str, changes: Mapping[str, str | None], *, dry_run: bool) -> list[Row]:
    """All settings after the change."""
    if not changes:
        return _configs(admin.describe_configs(topic=name).values())
    return _configs(admin.alter_configs(changes, topic=name, validate_only=dry_run).values())


def add_partitions(admin: AdminClient, name: str, total: int, *, dry_run: bool) -> Row:
    """The topic after it."""
    return topic_row(admin.add_partitions(name, total, validate_only=dry_run))


def trim_offsets(admin: AdminClient, name: str, partitions: list[int] | None, offset: int) -> TrimOffsets:
    """
    Below which offset to remove records, per partition; -1: all there are. Without ``partitions`` it is all of the
    topic's; a shorter one then loses what it has, for an offset beyond its end would be refused when others are trimmed
    already.

    Raises:
        CommandFailed: no partition reaches ``offset``, so all would be gone: it is a slip.
    """
    if partitions or offset < 0:
        numbers = partitions or [p.partition for p in admin.describe_topic(name).partitions]
        return {(name, number): offset for number in numbers}
    rows = describe_topic(admin, name)["partitions"]
    ends = [r["high_watermark"] for r in rows]
    if None not in ends and offset > max(ends, default=0):
        raise CommandFailed(
            f"no partition of {name} reaches offset {offset}, the longest ends at {max(ends, default=0)};"
            " nothing was removed. --all removes all there is now"
        )
    lasts = [offset if end is None else min(offset, end) for end in ends]
    return {(name, row["partition"]): last for row, last in zip(rows, lasts, strict=True)}


def trim_offsets_before_time(
    admin: AdminClient, consumer: Consumer, name: str, partitions: list[int] | None, time_ms: int
) -> TrimOffsets:
    """
    The same for a time: the offset of the first record at or after it, or the end as it was before that was looked up,
    so that no younger record goes.
    """
    numbers = partitions or [p.partition for p in admin.describe_topic(name).partitions]
    ends = consumer.end_offsets([(name, number) for number in numbers])
    found = consumer.offsets_for_times({(name, number): time_ms for number in numbers})
    return {(tp.topic, tp.partition): ends[tp] if at is None else at.offset for tp, at in found.items()}


def trim(admin: AdminClient, offsets: TrimOffsets) -> list[Row]:
    """The first offset that is left, per partition."""
    starts = admin.delete_records(offsets)
    return [{"partition": tp.partition, "log_start_offset": at, "error": None} for tp, at in sorted(starts.items())]


def trim_plan(admin: AdminClient, name: str, offsets: TrimOffsets) -> list[Row]:
    """What ``trim`` would remove, as far as leaders answer; compacted logs hold fewer records than offsets."""
    rows: list[Row] = []
    for row in describe_topic(admin, name)["partitions"]:
        last, start, end = offsets.get((name, row["partition"])), row["log_start_offset"], row["high_watermark"]
        if last is None:
            continue
        known = start is not None and end is not None
        new = (end if last < 0 else min(max(last, start), end)) if known else None
        rows.append(
            {
                "partition": row["partition"],
                "log_start_offset": start,
                "new_log_start_offset": new,
                "offsets_removed": new - start if known else None,
                "high_watermark": end,
            }
        )
    return rows


# --- cluster and brokers --------------------------------------------------------------------------------------


def list_brokers(admin: AdminClient, rows: Iterable[Row]) -> list[Row]:
    """All brokers, as ``replication_view.brokers`` has them, with what their disks hold."""
    holds = {logs.broker_id: logs for logs in admin.describe_logs()}
    return [row | _holding(holds.get(row["id"])) for row in rows]


def describe_broker(admin: AdminClient, row: Row) -> Row:
    """One broker with what its disk holds, what recovery found, and its settings."""
    row = dict(row)
    for logs in admin.describe_logs(broker=row["id"]):
        row |= _holding(logs) | {"disk_total_bytes": logs.disk_total_bytes, "recovery_report": logs.recovery_report}
        row["scrub"] = None if logs.scrub is None else asdict(logs.scrub)
    return row | {"configs": broker_configs(admin, row["id"], {})}


def broker_configs(
    admin: AdminClient, broker: int | None, changes: Mapping[str, str | None], *, dry_run: bool = False
) -> list[Row]:
    """Settings of one broker, or (None) of all, after the changes."""
    if changes:
        return _configs(admin.alter_configs(changes, broker=broker, validate_only=dry_run).values())
    return _configs(admin.describe_configs(broker=broker).values())


def describe_logs(
    admin: AdminClient, broker: int | None, topic: str | None, partition: int | None, segments: bool
) -> Row:
    """Every replica's log, and who did not answer. Raises: CommandFailed when all who were asked are silent."""
    names = {t.topic_id: t.name for t in admin.list_topics(include_internal=True)}
    answers = admin.describe_logs(broker=broker, topics=[] if topic is None else [topic], segments=segments)
    silent = [f"broker {b.broker_id}: {b.error}" for b in answers if b.error]
    if silent and len(silent) == len(answers):
        raise CommandFailed("; ".join(silent), ExitCode.UNREACHABLE, "`headrace broker list` shows who is there.")
    logs = log_view.logs(answers, names)
    return {
        "logs": [log for log in logs if partition is None or log["partition"] == partition],
        "unanswered": log_view.unanswered(answers),
    }


def metadata(bootstrap: str, topics: list[str]) -> Row:
    """
    What a broker tells clients, as it is on the wire.

    Raises:
        NetworkFailed: no broker answered.
    """
    import grpc

    from headrace_common.core.errors import NetworkFailed
    from headrace_common.rpc.channels import open_sync_channel
    from headrace_common.rpc.json_form import json_of
    from headrace_proto.v1 import broker_pb2, broker_pb2_grpc

    said: list[str] = []
    for address in bootstrap.split(","):
        with open_sync_channel(address.strip()) as channel:
            request = broker_pb2.MetadataRequest(topics=topics, all_topics=not topics)
            try:
                answer = broker_pb2_grpc.BrokerStub(channel).Metadata(request, timeout=5)
            except grpc.RpcError as error:
                said.append(f"{address}: {error.code().name}")
                continue
            return json_of(answer)
    raise NetworkFailed(f"no broker answered: {'; '.join(said)}")


# --- rows -----------------------------------------------------------------------------------------------------


def topic_row(topic: TopicDescription, led: Mapping[int, Row] | None = None) -> Row:
    """``led``: the log of each partition's leader, where it is known."""
    return {
        "name": topic.name,
        "id": topic.topic_id.hex(),
        "internal": topic.internal,
        "configs": _by_name(topic.configs),
        "partitions": [partition_row(p, (led or {}).get(p.partition)) for p in topic.partitions],
        "notes": list(topic.notes),
    }


def partition_row(p: PartitionInfo, log: Row | None = None) -> Row:
    """One partition; ``log`` is its leader's, where it is known."""
    return {
        "partition": p.partition,
        "leader": p.leader,
        "leader_epoch": p.leader_epoch,
        "replicas": list(p.replicas),
        "isr": list(p.isr),
        "elr": list(p.elr),
        "recovering": p.recovering,
        "adding": list(p.adding),
        "removing": list(p.removing),
        **log_view.extent(log),
    }


def _by_name(configs: Mapping[str, str]) -> dict[str, str]:
    return dict(sorted(configs.items()))


def _holding(logs: BrokerLogs | None) -> Row:
    if logs is None or logs.failure is not None:
        failed = logs and logs.failure
        error = problem_body(failed, f"/v1/brokers/{logs.broker_id}/logs") if logs and failed else None
        return {"log_count": None, "size_bytes": None, "disk_free_bytes": None, "error": error}
    return {
        "log_count": len(logs.logs),
        "size_bytes": sum(log.size_bytes for log in logs.logs),
        "disk_free_bytes": logs.disk_free_bytes,
        "error": None,
    }


def _configs(entries: Iterable[ConfigEntry]) -> list[Row]:
    return [asdict(e) | {"source": _SOURCES.get(e.source, "unknown")} for e in sorted(entries, key=lambda e: e.name)]
