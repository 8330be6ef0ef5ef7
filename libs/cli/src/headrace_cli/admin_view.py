"""What commands ask the admin service about topics, brokers and their logs, as REST answers it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from headrace_cli.exits import CommandFailed, ExitCode

if TYPE_CHECKING:
    from headrace import AdminClient, Consumer
    from headrace.admin_types import ConfigEntry, TopicDescription
    from headrace.finding import ClusterAddress
    from headrace_proto.v1.admin_pb2 import BrokerLogs
    from headrace_proto.v1.broker_pb2 import LogDescription

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
    return _topic(admin.create_topic(name, partitions, replication_factor, configs, validate_only=dry_run))


def topic_there(admin: AdminClient, name: str) -> Row:
    """The topic that was to be made, in the same words."""
    return _topic(admin.describe_topic(name))


def list_topics(admin: AdminClient, internal: bool, *, sizes: bool = False) -> list[Row]:
    """All topics; with ``sizes`` brokers are asked for all their logs."""
    from headrace_common.rpc.json_form import json_of

    topics = [topic.wire for topic in admin.list_topics(include_internal=internal)]
    if not sizes:
        return [json_of(t) for t in topics]
    of: dict[bytes, list[LogDescription]] = {t.topic_id: [] for t in topics}
    for broker in _logs(admin):
        for log in broker.logs.logs:
            of.get(log.topic_id, []).append(log)
    return [json_of(t) | _holds(of[t.topic_id]) for t in topics]


def _logs(
    admin: AdminClient, broker: int | None = None, topic_id: bytes | None = None, *, segments: bool = False
) -> list[BrokerLogs]:
    """What brokers keep, or one of them, of all topics or of one; who does not answer is there with its error."""
    from headrace_proto.v1 import admin_pb2, broker_pb2

    wanted = broker_pb2.DescribeLogsRequest(topic_ids=[] if topic_id is None else [topic_id], segments=segments)
    request = admin_pb2.DescribeClusterLogsRequest(broker_id=broker, request=wanted)
    found: list[BrokerLogs] = list(admin.ask("DescribeLogs", request).brokers)
    return found


def _holds(logs: list[LogDescription]) -> Row:
    """Who leads is not asked: the longest log of a partition stands for it."""
    longest: dict[int, LogDescription] = {}
    for log in logs:
        if log.partition not in longest or log.log_end_offset > longest[log.partition].log_end_offset:
            longest[log.partition] = log
    oldest = [log.oldest_timestamp_ms for log in longest.values() if log.HasField("oldest_timestamp_ms")]
    return {
        "size_bytes": sum(log.size_bytes for log in longest.values()),
        "replica_bytes": sum(log.size_bytes for log in logs),
        "oldest_timestamp_ms": min(oldest, default=None),
        "stuck_compactions": sum(log.compaction.stuck for log in logs),
    }


def describe_topic(admin: AdminClient, name: str, *, segments: bool = False) -> Row:
    """
    A topic with its settings, its partitions, what their leaders hold, and the logs of all replicas. ``records`` is
    None where compaction leaves gaps between offsets.
    """
    from headrace_common.rpc import answers
    from headrace_proto.v1 import admin_pb2

    described = admin.describe_topic(name).wire
    kept = admin_pb2.DescribeClusterLogsResponse(
        brokers=_logs(admin, None, described.topic.topic_id, segments=segments)
    )
    told, logs = answers.topic(described, kept), answers.topic_logs(described, kept)
    led = answers.leader_logs(described, kept).values()
    compacted = any(log["compaction"] is not None for log in logs["logs"])
    oldest = [log.oldest_timestamp_ms for log in led if log.HasField("oldest_timestamp_ms")]
    held = {
        "records": None if compacted else sum(log.high_watermark - log.log_start_offset for log in led),
        "size_bytes": sum(log.size_bytes for log in led),
        "replica_bytes": sum(log["size_bytes"] for log in logs["logs"]),
        "oldest_timestamp_ms": min(oldest, default=None),
    }
    return told | held | logs


def set_topic_configs(admin: AdminClient, name: str, changes: Mapping[str, str | None], *, dry_run: bool) -> list[Row]:
    """All settings after the change."""
    if not changes:
        return _configs(admin.describe_configs(topic=name).values())
    return _configs(admin.alter_configs(changes, topic=name, validate_only=dry_run).values())


def add_partitions(admin: AdminClient, name: str, total: int, *, dry_run: bool) -> Row:
    """The topic after it."""
    return _topic(admin.add_partitions(name, total, validate_only=dry_run))


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
    """All brokers, as ``replication_view.cluster`` has them, with what their disks hold."""
    kept = {logs.broker_id: logs for logs in _logs(admin)}
    return [row | _holding(kept.get(row["id"])) for row in rows]


def describe_broker(admin: AdminClient, row: Row) -> Row:
    """One broker with what its disk holds, what recovery found, and its settings."""
    from headrace_common.rpc.json_form import json_of

    (kept,) = _logs(admin, row["id"])
    told = {} if kept.HasField("error") else json_of(kept.logs)
    told.pop("logs", None)
    return row | told | _holding(kept) | {"configs": broker_configs(admin, row["id"], {})}


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
    from headrace_common.rpc import answers

    topic_id = None if topic is None else admin.describe_topic(topic).topic_id
    kept = _logs(admin, broker, topic_id, segments=segments)
    told = answers.logs(kept, {t.topic_id: t.name for t in admin.list_topics(include_internal=True)})
    silent = [f"broker {b['broker']}: {b['error']['detail']}" for b in told["unanswered"]]
    if silent and len(silent) == len(kept):
        raise CommandFailed("; ".join(silent), ExitCode.UNREACHABLE, "`headrace broker list` shows who is there.")
    return told | {"logs": [log for log in told["logs"] if partition is None or log["partition"] == partition]}


def metadata(cluster: ClusterAddress, topics: list[str]) -> Row:
    """
    What a broker tells clients, as it is on the wire.

    Raises:
        NetworkFailed: no broker answered.
        Unauthenticated, Denied: it does not tell it to who shows this.
    """
    import grpc

    from headrace.securing import security_of
    from headrace_common.core.errors import Kind, NetworkFailed
    from headrace_common.rpc.channels import open_sync_channel
    from headrace_common.rpc.json_form import json_of
    from headrace_common.rpc.status import error_from_rpc
    from headrace_proto.v1 import broker_pb2, broker_pb2_grpc

    said: list[str] = []
    security = security_of(cluster)
    for address in cluster:
        with open_sync_channel(address, security) as channel:
            request = broker_pb2.MetadataRequest(topics=topics, all_topics=not topics)
            try:
                answer = broker_pb2_grpc.BrokerStub(channel).Metadata(request, timeout=5)
            except grpc.RpcError as error:
                failed = error_from_rpc(error)
                if failed.kind in (Kind.UNAUTHENTICATED, Kind.DENIED):
                    raise failed from error
                said.append(f"{address}: {error.code().name}")
                continue
            return json_of(answer)
    raise NetworkFailed(f"no broker answered: {'; '.join(said)}")


# --- rows -----------------------------------------------------------------------------------------------------


def _topic(topic: TopicDescription) -> Row:
    """A topic as a change of it answers; nobody was asked what its logs hold."""
    from headrace_common.rpc import answers

    return answers.topic(topic.wire)


def _holding(kept: BrokerLogs | None) -> Row:
    from headrace_common.rpc.answers import explain_silence

    error = None if kept is None else explain_silence(kept)
    if kept is None or error is not None:
        return {"log_count": None, "size_bytes": None, "disk_free_bytes": None, "error": error}
    return {
        "log_count": len(kept.logs.logs),
        "size_bytes": sum(log.size_bytes for log in kept.logs.logs),
        "disk_free_bytes": kept.logs.disk_free_bytes,
        "error": None,
    }


def _configs(entries: Iterable[ConfigEntry]) -> list[Row]:
    from headrace_common.rpc import answers

    rows: list[Row] = answers.configs(entry.wire for entry in entries)["configs"]
    return rows
