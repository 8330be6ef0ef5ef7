"""
What commands ask the admin service, as plain rows for people and programs. The only user of ``AdminClient``'s types.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from headrace_cli import log_view
from headrace_cli.exits import CommandFailed, ExitCode

if TYPE_CHECKING:
    from headrace import AdminClient, Consumer
    from headrace.admin_types import BrokerInfo, BrokerLogs, ConfigEntry, LogInfo, TopicDescription
    from headrace_proto.v1.broker_pb2 import MetadataResponse

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
    made = admin.create_topic(name, partitions, replication_factor, configs, validate_only=dry_run)
    return _topic(made) | {"notes": list(made.notes)}


def topic_there(admin: AdminClient, name: str) -> Row:
    """The topic that was to be made, in the same words."""
    return _topic(admin.describe_topic(name))


def list_topics(admin: AdminClient, internal: bool, *, sizes: bool = False) -> list[Row]:
    """All topics; with ``sizes`` brokers are asked for all their logs."""
    topics = admin.list_topics(include_internal=internal)
    rows = [
        {"name": t.name, "partitions": t.partitions, "configs": _by_name(t.configs), "topic_id": t.topic_id.hex()}
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


def describe_topic(admin: AdminClient, name: str, segments: bool, states: Mapping[int, Row] | None = None) -> Row:
    """
    A topic with its partitions, what their leaders hold, how far replicas are compacted, and its settings; ``states``
    has more to tell of partitions. ``records`` is None where compaction leaves gaps between offsets.
    """
    topic = admin.describe_topic(name)
    brokers = admin.describe_logs(topics=[name], segments=segments)
    logs = log_view.held(brokers)
    partitions = [
        {
            "partition": p.partition,
            "leader": p.leader,
            "leader_epoch": p.leader_epoch,
            "replicas": list(p.replicas),
            "isr": list(p.isr),
            **(states or {}).get(p.partition, {}),
            **log_view.extent(None if p.leader is None else logs.get((p.leader, p.partition))),
        }
        for p in topic.partitions
    ]
    described = _topic(topic) | {"configs": _by_name(topic.configs)}
    compaction = log_view.compactions(logs)
    counts = [p["end_offset"] - p["start_offset"] for p in partitions if p["end_offset"] is not None]
    described["records"] = None if compaction else sum(counts)
    described |= log_view.total(logs, {p.partition: p.leader for p in topic.partitions})
    described["unanswered"] = log_view.silent(brokers)
    described["partitions"] = partitions
    described["compaction"] = compaction
    if segments:
        described["segments"] = log_view.segments(logs)
    return described


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
    rows = describe_topic(admin, name, segments=False)["partitions"]
    ends = [r["end_offset"] for r in rows]
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
    return [{"partition": tp.partition, "start_offset": start} for tp, start in sorted(starts.items())]


def trim_plan(admin: AdminClient, name: str, offsets: TrimOffsets) -> list[Row]:
    """What ``trim`` would remove, as far as leaders answer; compacted logs hold fewer records than offsets."""
    rows: list[Row] = []
    for row in describe_topic(admin, name, segments=False)["partitions"]:
        last, start, end = offsets.get((name, row["partition"])), row["start_offset"], row["end_offset"]
        if last is None:
            continue
        known = start is not None and end is not None
        new = (end if last < 0 else min(max(last, start), end)) if known else None
        rows.append(
            {
                "partition": row["partition"],
                "start_offset": start,
                "new_start_offset": new,
                "offsets_removed": new - start if known else None,
                "end_offset": end,
            }
        )
    return rows


# --- cluster and brokers --------------------------------------------------------------------------------------


def describe_cluster(admin: AdminClient) -> Row:
    """The cluster at one moment."""
    cluster = admin.describe_cluster()
    return {
        "cluster_id": cluster.cluster_id,
        "active_controller": cluster.controller_id,
        "metadata_store_reachable": cluster.metadata_store_reachable,
        "topics": cluster.topics,
        "partitions": cluster.partitions,
        "offline_partitions": cluster.offline_partitions,
        "under_replicated_partitions": cluster.under_replicated_partitions,
        "brokers": [_broker(info) for info in cluster.brokers],
    }


def list_brokers(admin: AdminClient) -> list[Row]:
    """All brokers, with what they hold."""
    holds = {logs.broker_id: logs for logs in admin.describe_logs()}
    return [_broker(info) | _holding(holds.get(info.id)) for info in admin.list_brokers()]


def describe_broker(admin: AdminClient, broker: int) -> Row:
    """One broker with its settings."""
    row = _broker(admin.describe_broker(broker))
    for logs in admin.describe_logs(broker=broker):
        row |= _holding(logs) | {"disk_total_bytes": logs.disk_total_bytes, "recovery": logs.recovery_report or None}
        row["scrub"] = None if logs.scrub is None else asdict(logs.scrub)
    return row | {"configs": broker_configs(admin, broker, {})}


def broker_configs(
    admin: AdminClient, broker: int | None, changes: Mapping[str, str | None], *, dry_run: bool = False
) -> list[Row]:
    """Settings of one broker, or (None) of all, after the changes."""
    if changes:
        return _configs(admin.alter_configs(changes, broker=broker, validate_only=dry_run).values())
    return _configs(admin.describe_configs(broker=broker).values())


def describe_logs(
    admin: AdminClient, broker: int | None, topic: str | None, partition: int | None, segments: bool
) -> list[Row]:
    """Every replica's log, or every segment of them. Raises: CommandFailed when the broker that was asked is silent."""
    names = {t.topic_id: t.name for t in admin.list_topics(include_internal=True)}
    answers = admin.describe_logs(broker=broker, topics=[] if topic is None else [topic], segments=segments)
    silent = [f"broker {b.broker_id}: {b.error}" for b in answers if b.error]
    if silent and len(silent) == len(answers):
        raise CommandFailed("; ".join(silent), ExitCode.UNREACHABLE, "`headrace broker list` shows who is there.")
    rows: list[Row] = []
    for answer in answers:
        for log in answer.logs:
            if partition is not None and log.partition != partition:
                continue
            place = {"broker": answer.broker_id, "topic": names.get(log.topic_id), "partition": log.partition}
            if segments:
                rows += [place | log_view.segment(segment) for segment in log.segments]
            else:
                rows.append(place | log_view.log(log))
    return rows


def metadata(bootstrap: str, topics: list[str]) -> Row:
    """
    What a broker tells clients, as it is on the wire.

    Raises:
        NetworkFailed: no broker answered.
    """
    import grpc
    from google.protobuf.json_format import MessageToDict

    from headrace_common.core.errors import NetworkFailed
    from headrace_common.rpc.channels import open_sync_channel
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
            data: Row = MessageToDict(
                answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
            )
            return _with_hex_ids(data, answer)
    raise NetworkFailed(f"no broker answered: {'; '.join(said)}")


def _with_hex_ids(data: Row, answer: MetadataResponse) -> Row:
    """Ids as people see them elsewhere, not in base64."""
    for row, topic in zip(data["topics"], answer.topics, strict=True):
        row["topic_id"] = topic.topic_id.hex()
    for row, node in zip(data["nodes"], answer.nodes, strict=True):
        row["incarnation"] = node.incarnation.hex()
    return data


# --- rows -----------------------------------------------------------------------------------------------------


def _topic(topic: TopicDescription) -> Row:
    replicas = max((len(p.replicas) for p in topic.partitions), default=0)
    return {
        "name": topic.name,
        "topic_id": topic.topic_id.hex(),
        "partitions": len(topic.partitions),
        "replication_factor": replicas,
    }


def _by_name(configs: Mapping[str, str]) -> dict[str, str]:
    return dict(sorted(configs.items()))


def _broker(info: BrokerInfo) -> Row:
    return {
        "id": info.id,
        "state": "stopping" if info.in_controlled_shutdown else "fenced" if info.fenced else "online",
        "grpc": info.address,
        "rack": info.rack,
        "version": info.version,
    }


def _holding(logs: BrokerLogs | None) -> Row:
    if logs is None or logs.error is not None:
        return {"logs": None, "size_bytes": None, "disk_free_bytes": None, "error": logs.error if logs else None}
    return {
        "logs": len(logs.logs),
        "size_bytes": sum(log.size_bytes for log in logs.logs),
        "disk_free_bytes": logs.disk_free_bytes,
        "error": None,
    }


def _configs(entries: Iterable[ConfigEntry]) -> list[Row]:
    return [
        {"name": e.name, "value": e.value, "source": e.source, "documentation": e.documentation}
        for e in sorted(entries, key=lambda entry: entry.name)
    ]
