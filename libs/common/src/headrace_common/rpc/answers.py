"""
What administration answers, as JSON: one function for each answer, over the messages of the ``Admin`` service.

REST sends these, and commands print them. ``json_form`` has the rule; here is what is put together of several messages,
or named by what was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final
from urllib.parse import quote

from headrace_common.rpc.json_form import OF_LEADER, Json, json_of
from headrace_proto.v1 import admin_pb2, broker_pb2, cluster_pb2, coordinator_pb2
from headrace_proto.v1 import controller_pb2 as pb

TRANSACTIONS: Final = "/v1/transactions"

# --- cluster ----------------------------------------------------------------------------------------------------------


def cluster(answer: pb.DescribeClusterResponse) -> Json:
    """The cluster at a glance; ``status`` tells more of partitions in trouble and of shards."""
    told = json_of(answer)
    others = sorted((n for n in answer.nodes if n.role != cluster_pb2.BROKER), key=lambda n: (n.role, n.id))
    return told | {
        "active_controller": None if answer.active_controller.id < 0 else told["active_controller"],
        "brokers": brokers(answer.nodes),
        "other_nodes": [json_of(n) for n in others],
    }


def brokers(nodes: Iterable[cluster_pb2.Node]) -> list[Json]:
    """All registered brokers, by id."""
    return [json_of(n) for n in sorted(nodes, key=lambda n: n.id) if n.role == cluster_pb2.BROKER]


def status(answer: admin_pb2.DescribeStatusResponse) -> Json:
    """The status with its verdict."""
    return json_of(answer)


def certificates(answer: admin_pb2.DescribeCertificatesResponse) -> Json:
    """Which certificates nodes show."""
    return json_of(answer)


def features(answer: admin_pb2.DescribeFeaturesResponse) -> Json:
    """The cluster's feature level, what each brings, and who knows which."""
    told = json_of(answer)
    for feature in told["features"]:
        feature["active"] = answer.level >= feature["level"]
    return told


def restore(answer: pb.DescribeRestoreResponse) -> Json:
    """The last restore of the metadata, if there was one."""
    if not answer.HasField("restore"):
        return {"restore": None}
    return {"restore": json_of(answer.restore) | {"silent_brokers": list(answer.silent)}}


def strays(answer: pb.DescribeRestoreResponse) -> Json:
    """Logs that the metadata does not know, by topic."""
    return json_of(answer)


def configs(entries: Iterable[pb.ConfigEntry]) -> Json:
    """Effective settings, by name."""
    return {"configs": [json_of(e) for e in sorted(entries, key=lambda e: e.name)]}


# --- topics and logs --------------------------------------------------------------------------------------------------


def topics(answer: pb.ListTopicsResponse) -> Json:
    last = answer.topics[-1].name if answer.more and answer.topics else None
    return json_of(answer) | {"next": last}


def topic(described: pb.TopicDescription, answer: admin_pb2.DescribeClusterLogsResponse | None = None) -> Json:
    """A topic; ``answer`` tells what the leaders of its partitions hold."""
    logs = {} if answer is None else leader_logs(described, answer)
    ordered = sorted(described.partitions, key=lambda p: p.partition)
    return json_of(described) | {"partitions": [partition(p, logs.get(p.partition)) for p in ordered]}


def partition(p: cluster_pb2.Partition, log: broker_pb2.LogDescription | None = None) -> Json:
    """A partition; ``log`` is its leader's, where it is known."""
    held = {} if log is None else json_of(log)
    return json_of(p) | {name: held[name] for name in OF_LEADER if held}


def topic_logs(described: pb.TopicDescription, answer: admin_pb2.DescribeClusterLogsResponse) -> Json:
    """All replicas of a topic; brokers that did not answer are named if they should have one."""
    name, topic_id = described.topic.name, described.topic.topic_id
    holders = {replica for p in described.partitions for replica in p.replicas}
    told = logs((b for b in answer.brokers if b.broker_id in holders or not b.HasField("error")), {topic_id: name})
    return told | {"logs": [log for log in told["logs"] if log["topic_id"] == topic_id.hex()]}


def logs(brokers: Iterable[admin_pb2.BrokerLogs], names: Mapping[bytes, str]) -> Json:
    """What brokers keep, by partition and broker, and who did not answer; topics by name where ``names`` has them."""
    asked = list(brokers)
    rows = [
        {"broker": b.broker_id, "topic": names.get(log.topic_id)} | json_of(log) for b in asked for log in b.logs.logs
    ]
    return {
        "logs": sorted(rows, key=lambda log: (log["partition"], log["broker"])),
        "unanswered": [{"broker": b.broker_id, "error": explain_silence(b)} for b in asked if b.HasField("error")],
    }


def broker_logs(answer: admin_pb2.BrokerLogs, names: Mapping[bytes, str]) -> Json:
    """What a broker keeps; topics by name where ``names`` has them."""
    told = json_of(answer.logs)
    told["logs"] = [{"topic": names.get(log.topic_id)} | json_of(log) for log in answer.logs.logs]
    return {"broker": answer.broker_id} | told


def explain_silence(broker: admin_pb2.BrokerLogs) -> Json | None:
    """Why a broker does not tell what it keeps; None: it does."""
    problem: Json | None = json_of(broker, f"/v1/brokers/{broker.broker_id}/logs")["error"]
    return problem


def leader_logs(
    described: pb.TopicDescription, answer: admin_pb2.DescribeClusterLogsResponse
) -> dict[int, broker_pb2.LogDescription]:
    """The log of each partition's leader, by partition."""
    leaders = {p.partition: p.leader for p in described.partitions}
    return {
        log.partition: log
        for broker in answer.brokers
        for log in broker.logs.logs
        if log.topic_id == described.topic.topic_id and leaders.get(log.partition) == broker.broker_id
    }


def trimmed(topic: str, answer: broker_pb2.DeleteRecordsResponse) -> Json:
    """What became of each partition whose records were removed."""
    return {"partitions": [_trimmed(p, topic) for p in answer.partitions]}


def _trimmed(result: broker_pb2.DeleteRecordsResult, topic: str) -> Json:
    told = _result(result, topic)
    return told | {"log_start_offset": None if result.error else told["log_start_offset"]}


# --- partitions -------------------------------------------------------------------------------------------------------


def outcomes(results: Iterable[pb.PartitionOutcome], name_of: Callable[[bytes], str]) -> Json:
    """What became of each partition."""
    return {"partitions": [_outcome(r, name_of(bytes(r.topic_id))) for r in results]}


def _outcome(result: pb.PartitionOutcome, topic: str) -> Json:
    told = _result(result, topic)
    if told["error"] is not None:  # controllers know topics by id
        told["error"]["detail"] = told["error"]["detail"].replace(result.topic_id.hex(), topic)
    return {"topic": topic} | told


def reassignments(answer: admin_pb2.DescribeReassignmentsResponse) -> Json:
    return json_of(answer)


def plan(answer: admin_pb2.RebalanceClusterResponse | admin_pb2.DecommissionBrokerResponse) -> Json:
    """What moves, or how far a broker is from holding nothing."""
    return json_of(answer) | {"moves": [_result(move, move.topic) for move in answer.moves]}


def _result(result: broker_pb2.DeleteRecordsResult | pb.PartitionOutcome | admin_pb2.PlannedMove, topic: str) -> Json:
    return json_of(result, f"/v1/topics/{topic}/partitions/{result.partition}")


# --- groups -----------------------------------------------------------------------------------------------------------


def groups(answer: admin_pb2.ListClusterGroupsResponse) -> Json:
    return json_of(answer, "/v1/groups")


def group(described: coordinator_pb2.GroupDescription) -> Json:
    return json_of(described)


def lag(group_id: str, answer: admin_pb2.DescribeGroupLagResponse) -> Json:
    """How far a group is behind, in all and per partition."""
    told: Json = {"group": group_id} | json_of(answer, f"{group_path(group_id)}/lag")
    rows = told["partitions"]
    return told | {
        "total_lag": sum(row["lag"] or 0 for row in rows),
        "lag_seconds_max": max((row["lag_seconds"] for row in rows if row["lag_seconds"] is not None), default=None),
    }


def reset(group_id: str, answer: admin_pb2.ResetOffsetsResponse) -> Json:
    """A plan, or what became of it."""
    return {"group": group_id} | json_of(answer, f"{group_path(group_id)}/offsets/reset")


def deleted_offsets(group_id: str, answer: coordinator_pb2.DeleteOffsetsResponse) -> Json:
    """What became of each partition."""
    return json_of(answer, f"{group_path(group_id)}/offsets/delete")


def group_path(group_id: str) -> str:
    return f"/v1/groups/{quote(group_id, safe='')}"


# --- transactions -----------------------------------------------------------------------------------------------------


def transactions(
    answer: admin_pb2.ListClusterTransactionsResponse
    | admin_pb2.ListPreparedTransactionsResponse
    | admin_pb2.ListOpenTransactionsResponse,
) -> Json:
    """Transactional ids, prepared transactions with their tokens, or what is open; and who could not be asked."""
    return json_of(answer, TRANSACTIONS)


def transaction(described: admin_pb2.DescribedTransaction) -> Json:
    """A transactional id with its partitions."""
    return json_of(described)
