"""What commands ask of replication, as plain rows for people and programs. The only user of these messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.output import bytes_for_people, moment_for_people

if TYPE_CHECKING:
    from headrace import AdminClient
    from headrace_proto.v1 import cluster_pb2, controller_pb2

Row = dict[str, Any]
Named = tuple[str, int]
"""A topic and a partition of it."""


# --- status ---------------------------------------------------------------------------------------------------


def status(admin: AdminClient) -> Row:
    """The cluster with its verdict."""
    from headrace_common.rpc import answers

    return answers.status(admin.describe_status().wire)


def status_for_people(found: Row) -> Row:
    """The same in lines and tables, without what the verdict says."""
    shown = {name: value for name, value in found.items() if name != "state"}
    shown["brokers"] = [_broker_for_people(row) for row in found["brokers"]]
    shown["troubled"] = [
        {"partition": f"{t['topic']}-{t['partition']['partition']}"}
        | {name: t["partition"][name] for name in ("leader", "leader_epoch", "replicas", "isr", "elr")}
        | {"min_isr": t["min_isr"]}
        for t in found["troubled"]
    ]
    shown["holding_back"] = [
        {"partition": _name_partition(t)}
        | {name: t[name] for name in ("transactional_id", "producer_id", "standing")}
        | {"open_since": moment_for_people(t["open_since_ms"])}
        | {name: t[name] for name in ("first_offset", "held_back")}
        for t in found["holding_back"]
    ]
    shown["prepared_overdue"] = [
        {"transactional_id": p["transactional_id"], "producer_id": p["producer_id"]}
        | {"prepared_at": moment_for_people(p["prepared_at_ms"])}
        for p in found["prepared_overdue"]
    ]
    shown["stuck_compactions"] = [
        {"partition": _name_partition(s), "broker": s["broker"], "reason": s["reason"]}
        for s in found["stuck_compactions"]
    ]
    return shown


def _name_partition(row: Row) -> str:
    return f"{row['topic']}-{row['partition']}"


def _broker_for_people(broker: Row) -> Row:
    """A broker with its disk as people read it."""
    hidden = ("away_since_ms", "disk_free_bytes", "disk_total_bytes", "disk_reserve_bytes", "scrub")
    row = {name: value for name, value in broker.items() if name not in hidden}
    free, total = broker["disk_free_bytes"], broker["disk_total_bytes"]
    return row | {"disk_free": None if free is None else f"{bytes_for_people(free)} of {bytes_for_people(total)}"}


# --- nodes ----------------------------------------------------------------------------------------------------


def cluster(admin: AdminClient) -> Row:
    """The cluster at a glance: every node, and counts."""
    from headrace_common.rpc import answers

    return answers.cluster(admin.describe_cluster().wire)


def cluster_for_people(found: Row) -> Row:
    """The same in lines and tables."""
    active = found["active_controller"]
    shown = found | {"active_controller": None if active is None else active["id"]}
    shown["brokers"] = [_node(node, "id", "state", "grpc", "rack", "version") for node in found["brokers"]]
    shown["other_nodes"] = [_node(node, "role", "id", "grpc", "http", "version") for node in found["other_nodes"]]
    return shown


def state_of(broker: Row) -> str:
    """What a registered broker is doing, in one word."""
    return "stopping" if broker["in_controlled_shutdown"] else "fenced" if broker["fenced"] else "online"


def _node(node: Row, *names: str) -> Row:
    return {name: state_of(node) if name == "state" else node[name] for name in names}


# --- topics by name -------------------------------------------------------------------------------------------


class Topics:
    """Names, ids and partitions of topics, asked for once each."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin
        self._known: dict[str, controller_pb2.TopicDescription | None] = {}

    def get(self, name: str) -> controller_pb2.TopicDescription | None:
        """A topic; None: there is none of this name."""
        from headrace_common.core.errors import InvalidTopic, UnknownTopicOrPartition

        if name not in self._known:
            try:
                self._known[name] = self._admin.describe_topic(name).wire
            except (UnknownTopicOrPartition, InvalidTopic):
                self._known[name] = None
        return self._known[name]

    def partition(self, topic: str, number: int) -> cluster_pb2.Partition:
        """One partition. Raises: CommandFailed when there is none."""
        described = self.get(topic)
        for p in described.partitions if described is not None else ():
            if p.partition == number:
                return p
        what = f"topic {topic}" if described is None else f"partition {topic}-{number}"
        raise CommandFailed(f"{what} does not exist", ExitCode.NOT_FOUND, "`headrace topic list` shows the topics.")

    def resolve(self, text: str) -> list[Named]:
        """
        ``TOPIC``, ``TOPIC-N`` or ``TOPIC:N``; the first is all of its partitions.

        Raises:
            CommandFailed: it does not exist, or could mean two things.
        """
        exact = parse_partition(text, ":")
        if exact is not None:
            self.partition(*exact)
            return [exact]
        topic, single = self.get(text), parse_partition(text, "-")
        if single is not None and self.get(single[0]) is not None:
            if topic is not None:
                hint = (
                    f"Write {single[0]}:{single[1]} for the partition; the whole topic needs REST, POST /v1/elections."
                )
                raise CommandFailed(f"{text} is a topic and also a partition of {single[0]}", ExitCode.USAGE, hint)
            self.partition(*single)
            return [single]
        if topic is None:
            hint = "`headrace topic list` shows the topics; a partition is written TOPIC-N."
            raise CommandFailed(f"topic {text} does not exist", ExitCode.NOT_FOUND, hint)
        return [(text, p.partition) for p in topic.partitions]

    def refs(self, partitions: Sequence[Named]) -> list[cluster_pb2.PartitionRef]:
        """The same by id. Raises: CommandFailed when one does not exist."""
        from headrace_proto.v1 import cluster_pb2

        found = (self.partition(*one) for one in partitions)
        return [cluster_pb2.PartitionRef(topic_id=p.topic_id, partition=p.partition) for p in found]


def parse_partition(text: str, mark: str) -> Named | None:
    """``a-b-3`` as ``("a-b", 3)``; None where it does not end in a number behind the mark."""
    topic, found, number = text.rpartition(mark)
    return (topic, int(number)) if found and topic and number.isascii() and number.isdigit() else None


# --- elections ------------------------------------------------------------------------------------------------


def elect(admin: AdminClient, kind: str, partitions: Sequence[Named], topics: Topics) -> list[Row]:
    """What became of each partition; without ``partitions`` those that changed."""
    from headrace_proto.v1 import controller_pb2 as pb

    types = {"preferred": pb.PREFERRED, "unclean": pb.UNCLEAN, "without-missing": pb.WITHOUT_MISSING}
    request = pb.ElectLeadersRequest(type=types[kind], partitions=topics.refs(partitions))
    answer = admin.ask("ElectLeaders", request, change=True)
    return outcomes(answer.partitions, _names(request.partitions, partitions))


def _names(refs: Iterable[cluster_pb2.PartitionRef], partitions: Iterable[Named]) -> dict[bytes, str]:
    return {bytes(ref.topic_id): topic for ref, (topic, _) in zip(refs, partitions, strict=True)}


def outcomes(results: Iterable[controller_pb2.PartitionOutcome], names: Mapping[bytes, str]) -> list[Row]:
    """One row per partition; topics that ``names`` does not have stand by their ids."""
    from headrace_common.rpc import answers

    rows: list[Row] = answers.outcomes(results, lambda topic_id: names.get(topic_id, topic_id.hex()))["partitions"]
    return rows


# --- reassignments --------------------------------------------------------------------------------------------


def reassign(admin: AdminClient, wanted: Mapping[Named, Sequence[int]], topics: Topics, *, dry_run: bool) -> list[Row]:
    """What became of each partition; empty replicas cancel."""
    from headrace_proto.v1 import controller_pb2 as pb

    refs = topics.refs(list(wanted))
    request = pb.AlterReassignmentsRequest(
        reassignments=[
            pb.Reassignment(topic_id=r.topic_id, partition=r.partition, replicas=list(replicas))
            for r, replicas in zip(refs, wanted.values(), strict=True)
        ],
        validate_only=dry_run,
    )
    answer = admin.ask("AlterReassignments", request, change=True)
    return outcomes(answer.partitions, _names(refs, wanted))


def set_throttle(admin: AdminClient, bytes_per_s: int | None) -> None:
    """For all brokers; None is none. Raises: HeadraceError."""
    admin.alter_configs({"follower.replication.throttled.rate": bytes_per_s})


def reassignments(admin: AdminClient, measure_ms: int = 0) -> Row:
    from headrace_common.rpc import answers

    return answers.reassignments(admin.describe_progress(measure_ms=measure_ms).wire)


def progress_rows(found: Sequence[Row]) -> list[Row]:
    """One line per new replica, for people; a partition that only loses replicas has one too."""
    rows = []
    for p in found:
        now = p["partition"]
        for r in p["new_replicas"] or [None]:
            row = {
                "partition": f"{p['topic']}-{now['partition']}",
                "replicas": [b for b in now["replicas"] if b not in now["removing"]],
                "leaving": now["removing"],
                "new": r["broker"] if r else None,
                "percent": f"{r['percent']} %" if r else None,
                "copied": bytes_for_people(r["bytes"]) if r and r["bytes"] is not None else None,
                "of": bytes_for_people(p["leader_bytes"]) if p["leader_bytes"] is not None else None,
                "rate": f"{bytes_for_people(r['bytes_per_s'])}/s" if r and r["bytes_per_s"] is not None else None,
                "waits for": [f"{b} (away)" for b in p["waits_for"]] or None,
            }
            rows.append(row)
    return rows


# --- plans ----------------------------------------------------------------------------------------------------


def rebalance(admin: AdminClient, topics: Sequence[str], *, execute: bool, throttle: int | None) -> Row:
    """The plan; started, if so asked."""
    from headrace_common.rpc import answers

    return answers.plan(admin.rebalance(topics, validate_only=not execute, throttle_bytes_per_s=throttle).wire)


def decommission(admin: AdminClient, broker: int, *, execute: bool, throttle: int | None) -> Row:
    """What is still to be moved off a broker; started, if so asked."""
    from headrace_common.rpc import answers

    left = admin.decommission_broker(broker, validate_only=not execute, throttle_bytes_per_s=throttle)
    return {"broker": broker} | answers.plan(left.wire)
