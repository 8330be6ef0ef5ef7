"""What commands ask of replication, as plain rows for people and programs. The only user of these messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.output import bytes_for_people, moment_for_people

if TYPE_CHECKING:
    from headrace_cli.admin_calls import AdminCalls
    from headrace_proto.v1 import admin_pb2, cluster_pb2, controller_pb2

Row = dict[str, Any]
Named = tuple[str, int]
"""A topic and a partition of it."""

DOWN: Final = -1
"""A throttle that is none."""


# --- status ---------------------------------------------------------------------------------------------------


def status(calls: AdminCalls) -> Row:
    """The cluster with its verdict."""
    from headrace_proto.v1 import admin_pb2

    answer = calls.read(lambda stub, timeout: stub.DescribeStatus(admin_pb2.DescribeStatusRequest(), timeout=timeout))
    return status_row(answer)


def status_row(answer: admin_pb2.DescribeStatusResponse) -> Row:
    """From the wire."""
    from headrace_proto.v1 import admin_pb2

    state = admin_pb2.ClusterState.Name(answer.state).lower()
    row: Row = {
        "state": state,
        "healthy": state == "healthy",
        "verdict": answer.verdict,
        "cluster_id": answer.cluster_id,
        "active_controller": answer.controller_id if answer.HasField("controller_id") else None,
        "metadata_store_reachable": answer.metadata_store_reachable,
        "topics": answer.topics,
        "partitions": answer.partitions,
        "offline_partitions": answer.offline,
        "under_min_isr_partitions": answer.under_min_isr,
        "under_replicated_partitions": answer.under_replicated,
        "reassigning_partitions": answer.reassigning,
        "recovering_partitions": answer.recovering,
        "not_preferred_partitions": answer.not_preferred,
        "coordinators": answer.coordinators,
        "group_shards": answer.shards,
        "unowned_group_shards": answer.unowned_shards,
        "transaction_shards": answer.transaction_shards,
        "unowned_transaction_shards": answer.unowned_transaction_shards,
        "brokers": [_broker(b) for b in answer.brokers],
    }
    return row | {
        "troubled": [_partition(t.topic, t.partition) | {"min_isr": t.min_isr} for t in answer.troubled],
        "holding_back": [_holding_back(t) for t in answer.holding_back],
        "prepared_overdue": [
            {
                "transactional_id": p.transactional_id,
                "producer_id": p.producer_id,
                "prepared_at": moment_for_people(p.prepared_at_ms),
            }
            for p in answer.prepared_overdue
        ],
        "stuck_compactions": [
            {"partition": f"{s.topic}-{s.partition}", "broker": s.broker_id, "reason": s.reason}
            for s in answer.stuck_compactions
        ],
    }


def _holding_back(t: admin_pb2.OpenTransaction) -> Row:
    from headrace_proto.v1 import admin_pb2

    return {
        "partition": f"{t.topic}-{t.partition}",
        "transactional_id": t.transactional_id if t.HasField("transactional_id") else None,
        "producer_id": t.producer_id,
        "standing": admin_pb2.TxnStanding.Name(t.standing).removeprefix("TXN_").lower(),
        "open_since": moment_for_people(t.open_since_ms),
        "first_offset": t.first_offset,
        "held_back": t.held_back,
    }


def _broker(b: admin_pb2.BrokerStatus) -> Row:
    state = "stopping" if b.in_controlled_shutdown else "away" if b.fenced else "online"
    return {
        "id": b.broker_id,
        "state": state,
        "rack": b.rack if b.HasField("rack") else None,
        "drained": b.drained,
        "leaders": b.leaders,
        "replicas": b.replicas,
        "in_sync": b.in_sync,
        "disk_free_bytes": b.disk_free_bytes if b.HasField("disk_free_bytes") else None,
        "disk_total_bytes": b.disk_total_bytes if b.HasField("disk_total_bytes") else None,
    }


def _partition(topic: str, p: cluster_pb2.Partition) -> Row:
    return {
        "topic": topic,
        "partition": p.partition,
        "leader": p.leader if p.leader >= 0 else None,
        "leader_epoch": p.leader_epoch,
        "replicas": list(p.replicas),
        "isr": list(p.isr),
        "elr": list(p.elr),
    }


# --- topics by name -------------------------------------------------------------------------------------------


class Topics:
    """Names, ids and partitions of topics, asked for once each."""

    def __init__(self, calls: AdminCalls) -> None:
        self._calls = calls
        self._known: dict[str, controller_pb2.TopicDescription | None] = {}

    def get(self, name: str) -> controller_pb2.TopicDescription | None:
        """A topic; None: there is none of this name."""
        from headrace_common.core.errors import ErrorCode, error_for
        from headrace_proto.v1 import controller_pb2 as pb

        if name not in self._known:
            request = pb.DescribeTopicsRequest(names=[name])
            (result,) = self._calls.read(lambda stub, timeout: stub.DescribeTopics(request, timeout=timeout)).topics
            none = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION)
            if result.error and ErrorCode(result.error) not in none:
                raise error_for(result.error, result.message)
            self._known[name] = None if result.error else result.topic
        return self._known[name]

    def partition(self, topic: str, number: int) -> cluster_pb2.Partition:
        """One partition. Raises: CommandFailed when there is none."""
        described = self.get(topic)
        for p in described.partitions if described is not None else ():
            if p.partition == number:
                return p
        what = f"topic {topic}" if described is None else f"partition {topic}-{number}"
        raise CommandFailed(f"{what} does not exist", ExitCode.NOT_FOUND, "`headrace topic list` shows the topics.")

    def meant(self, text: str) -> list[Named]:
        """
        ``TOPIC``, ``TOPIC-N`` or ``TOPIC:N``; the first is all of its partitions.

        Raises:
            CommandFailed: it does not exist, or could mean two things.
        """
        exact = named(text, ":")
        if exact is not None:
            self.partition(*exact)
            return [exact]
        topic, single = self.get(text), named(text, "-")
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


def named(text: str, mark: str) -> Named | None:
    """``a-b-3`` as ``("a-b", 3)``; None where it does not end in a number behind the mark."""
    topic, found, number = text.rpartition(mark)
    return (topic, int(number)) if found and topic and number.isascii() and number.isdigit() else None


def partition_states(topics: Topics, name: str) -> dict[int, Row]:
    """ELR and what moves, per partition of a topic."""
    described = topics.get(name)
    return {
        p.partition: {
            "elr": list(p.elr),
            "adding": list(p.adding),
            "removing": list(p.removing),
            "recovering": p.recovering,
        }
        for p in (described.partitions if described is not None else ())
    }


# --- elections ------------------------------------------------------------------------------------------------


def elect(calls: AdminCalls, kind: str, partitions: Sequence[Named], topics: Topics) -> list[Row]:
    """What became of each partition; without ``partitions`` those that changed."""
    from headrace_proto.v1 import controller_pb2 as pb

    types = {"preferred": pb.PREFERRED, "unclean": pb.UNCLEAN, "without-missing": pb.WITHOUT_MISSING}
    request = pb.ElectLeadersRequest(type=types[kind], partitions=topics.refs(partitions))
    answer = calls.change(lambda stub, timeout: stub.ElectLeaders(request, timeout=timeout))
    return outcomes(answer.partitions, dict(zip(_keys(request.partitions), partitions, strict=True)))


def _keys(refs: Iterable[cluster_pb2.PartitionRef]) -> list[tuple[bytes, int]]:
    return [(bytes(r.topic_id), r.partition) for r in refs]


def outcomes(results: Iterable[controller_pb2.PartitionOutcome], names: Mapping[tuple[bytes, int], Named]) -> list[Row]:
    """One row per partition; topics that ``names`` does not have stand by their ids."""
    from headrace_common.core.errors import ErrorCode

    rows = []
    for r in results:
        topic, number = names.get((bytes(r.topic_id), r.partition), (r.topic_id.hex(), r.partition))
        now = r.current if r.HasField("current") else None
        rows.append(
            {
                "topic": topic,
                "partition": number,
                "leader": now.leader if now is not None and now.leader >= 0 else None,
                "replicas": list(now.replicas) if now is not None else None,
                "isr": list(now.isr) if now is not None else None,
                "moving": now is not None and bool(now.adding or now.removing),
                "error": ErrorCode(r.error).name if r.error else None,
                "message": r.message.replace(r.topic_id.hex(), topic) if r.error else None,
            }
        )
    return rows


# --- reassignments --------------------------------------------------------------------------------------------


def reassign(calls: AdminCalls, wanted: Mapping[Named, Sequence[int]], topics: Topics, *, dry_run: bool) -> list[Row]:
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
    answer = calls.change(lambda stub, timeout: stub.AlterReassignments(request, timeout=timeout))
    return outcomes(answer.partitions, dict(zip(_keys(refs), wanted, strict=True)))


def set_throttle(calls: AdminCalls, bytes_per_s: int) -> None:
    """For all brokers; ``DOWN`` is none. Raises: HeadraceError."""
    from headrace_common.core.errors import error_for
    from headrace_proto.v1 import controller_pb2 as pb

    request = pb.IncrementalAlterConfigsRequest()
    change = request.resources.add(resource=pb.ConfigResource(type=pb.BROKER_CONFIG)).changes.add(
        name="follower.replication.throttled.rate", op=pb.DELETE if bytes_per_s == DOWN else pb.SET
    )
    if bytes_per_s != DOWN:
        change.value = str(bytes_per_s)
    (result,) = calls.change(lambda stub, timeout: stub.IncrementalAlterConfigs(request, timeout=timeout)).results
    if result.error:
        raise error_for(result.error, result.message)


def reassignments(calls: AdminCalls, measure_ms: int = 0) -> Row:
    """Those under way with their progress, and the throttle."""
    from headrace_proto.v1 import admin_pb2

    request = admin_pb2.DescribeReassignmentsRequest(measure_ms=measure_ms)
    answer = calls.read(lambda stub, timeout: stub.DescribeReassignments(request, timeout=timeout))
    rows = []
    for p in answer.partitions:
        now = _partition(p.topic, p.partition)
        moves = {"adding": list(p.partition.adding), "removing": list(p.partition.removing)}
        sizes = {"leader_bytes": p.leader_bytes if p.HasField("leader_bytes") else None}
        news = [
            {
                "broker": r.broker_id,
                "bytes": r.bytes if r.HasField("bytes") else None,
                "percent": r.percent,
                "in_sync": r.in_sync,
                "bytes_per_s": r.bytes_per_s if r.HasField("bytes_per_s") else None,
            }
            for r in p.replicas
        ]
        rows.append(now | moves | sizes | {"new_replicas": news, "waits_for": list(p.waits_for)})
    throttle = answer.throttle_bytes_per_s if answer.HasField("throttle_bytes_per_s") else None
    return {"reassignments": rows, "throttle_bytes_per_s": throttle}


def progress_rows(found: Sequence[Row]) -> list[Row]:
    """One line per new replica, for people; a partition that only loses replicas has one too."""
    rows = []
    for p in found:
        for r in p["new_replicas"] or [None]:
            row = {
                "partition": f"{p['topic']}-{p['partition']}",
                "replicas": [b for b in p["replicas"] if b not in p["removing"]],
                "leaving": p["removing"],
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


def rebalance(calls: AdminCalls, topics: Sequence[str], *, execute: bool, throttle: int | None) -> Row:
    """The plan; started, if so asked."""
    from headrace_proto.v1 import admin_pb2

    request = admin_pb2.RebalanceClusterRequest(topics=topics, validate_only=not execute, throttle_bytes_per_s=throttle)
    ask = calls.change if execute else calls.read
    return plan_row(ask(lambda stub, timeout: stub.RebalanceCluster(request, timeout=timeout)))


def decommission(calls: AdminCalls, broker: int, *, execute: bool, throttle: int | None) -> Row:
    """What is still to be moved off a broker; started, if so asked."""
    from headrace_proto.v1 import admin_pb2

    request = admin_pb2.DecommissionBrokerRequest(
        broker_id=broker, validate_only=not execute, throttle_bytes_per_s=throttle
    )
    answer = calls.read(lambda stub, timeout: stub.DecommissionBroker(request, timeout=timeout))
    left = {
        "broker": broker,
        "drained": answer.drained,
        "replicas_left": answer.replicas_left,
        "leaders_left": answer.leaders_left,
        "moving": answer.moving,
        "next_step": answer.next_step,
    }
    return left | plan_row(answer)


def plan_row(answer: admin_pb2.RebalanceClusterResponse | admin_pb2.DecommissionBrokerResponse) -> Row:
    """Moves and loads; its JSON is what ``partition move --from-file`` takes."""
    from headrace_common.core.errors import ErrorCode

    return {
        "bytes_to_copy": answer.bytes_to_copy,
        "moves": [
            {
                "topic": m.topic,
                "partition": m.partition,
                "replicas": list(m.replicas),
                "replicas_before": list(m.replicas_before),
                "size_bytes": m.size_bytes,
                "error": ErrorCode(m.error).name if m.error else None,
                "message": m.message if m.error else None,
            }
            for m in answer.moves
        ],
        "brokers": [
            {
                "broker": b.broker_id,
                "replicas_before": b.replicas_before,
                "replicas_after": b.replicas_after,
                "leaders_before": b.leaders_before,
                "leaders_after": b.leaders_after,
            }
            for b in answer.brokers
        ],
    }


# --- brokers --------------------------------------------------------------------------------------------------


def drain(calls: AdminCalls, broker: int, drained: bool) -> int:
    """How many partitions it still leads."""
    from headrace_proto.v1 import controller_pb2 as pb

    request = pb.DrainBrokerRequest(broker_id=broker, drained=drained)
    return calls.read(lambda stub, timeout: stub.DrainBroker(request, timeout=timeout)).still_leading


def unregister(calls: AdminCalls, broker: int) -> None:
    """Forget a broker. Raises: HeadraceError."""
    from headrace_proto.v1 import cluster_pb2
    from headrace_proto.v1 import controller_pb2 as pb

    request = pb.UnregisterNodeRequest(role=cluster_pb2.BROKER, id=broker)
    calls.change(lambda stub, timeout: stub.UnregisterNode(request, timeout=timeout))
