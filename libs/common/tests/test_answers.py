"""
What REST answers and commands print, member by member, beside files that are kept.

Each answer is made of two messages: one with every field set, one with none. A file that differs is a change that users
see: it belongs into the changelog. ``HEADRACE_GOLDEN=write`` writes the files anew.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from headrace_common.core.errors import ErrorCode
from headrace_common.rpc import answers
from headrace_common.rpc.json_form import json_of, text_of_token
from headrace_proto.v1 import admin_pb2, broker_pb2, cluster_pb2, coordinator_pb2, transaction_pb2
from headrace_proto.v1 import controller_pb2 as pb

GOLDEN: Final = Path(__file__).parent / "golden"
DEPTH_MAX: Final = 8


def filled(message: Any, depth: int = 0) -> Any:
    """Every field of it set, lists with one entry each; numbers are the fields' own, so that no two are alike."""
    assert depth < DEPTH_MAX, "a message that holds itself"
    for field in message.DESCRIPTOR.fields:
        nested = field.type == FieldDescriptor.TYPE_MESSAGE
        if nested and field.message_type.GetOptions().map_entry:
            getattr(message, field.name)["retention.ms"] = "5"
        elif nested:
            inner = getattr(message, field.name)
            filled(inner.add() if field.is_repeated else inner, depth + 1)
            if not field.is_repeated:
                inner.SetInParent()
        elif field.is_repeated:
            getattr(message, field.name).append(_scalar(field))
        else:
            setattr(message, field.name, _scalar(field))
    return message


def _scalar(field: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_ENUM:
        numbers = sorted(field.enum_type.values_by_number)
        return ErrorCode.OVERLOADED if field.enum_type.name == "ErrorCode" else numbers[min(1, len(numbers) - 1)]
    if field.type == FieldDescriptor.TYPE_BOOL:
        return True
    if field.type == FieldDescriptor.TYPE_STRING:
        return field.name
    return bytes(range(16)) if field.type == FieldDescriptor.TYPE_BYTES else field.number


def led(described: pb.TopicDescription) -> admin_pb2.DescribeClusterLogsResponse:
    """What the leader of the topic's partition holds, and a replica that does not answer."""
    answer = admin_pb2.DescribeClusterLogsResponse()
    (partition,) = described.partitions
    leader = filled(answer.brokers.add(broker_id=partition.leader).logs)
    leader.logs[0].partition = partition.partition
    filled(answer.brokers.add()).broker_id = partition.replicas[0]
    del answer.brokers[1].logs.logs[:]
    return answer


def name_of(topic_id: bytes) -> str:
    return "flights"


def a_topic() -> pb.TopicDescription:
    described: pb.TopicDescription = filled(pb.TopicDescription())
    return described


ANSWERS: Final[dict[str, tuple[type[Message], Callable[[Any], Any]]]] = {
    "cluster": (pb.DescribeClusterResponse, answers.cluster),
    "status": (admin_pb2.DescribeStatusResponse, answers.status),
    "features": (admin_pb2.DescribeFeaturesResponse, answers.features),
    "restore": (pb.DescribeRestoreResponse, answers.restore),
    "strays": (pb.DescribeRestoreResponse, answers.strays),
    "configs": (pb.ConfigResult, lambda m: answers.configs(m.entries)),
    "topics": (pb.ListTopicsResponse, answers.topics),
    "topic": (pb.TopicDescription, lambda m: answers.topic(m, led(m) if m.partitions else None)),
    "topic-without-logs": (pb.TopicDescription, answers.topic),
    "topic-logs": (pb.TopicDescription, lambda m: answers.topic_logs(m, led(a_topic()))),
    "broker-logs": (admin_pb2.BrokerLogs, lambda m: answers.broker_logs(m, {bytes(range(16)): "flights"})),
    "trimmed": (broker_pb2.DeleteRecordsResponse, lambda m: answers.trimmed("flights", m)),
    "outcomes": (pb.ElectLeadersResponse, lambda m: answers.outcomes(m.partitions, name_of)),
    "reassignments": (admin_pb2.DescribeReassignmentsResponse, answers.reassignments),
    "plan": (admin_pb2.RebalanceClusterResponse, answers.plan),
    "leaving": (admin_pb2.DecommissionBrokerResponse, answers.plan),
    "groups": (admin_pb2.ListClusterGroupsResponse, answers.groups),
    "group": (coordinator_pb2.GroupDescription, answers.group),
    "lag": (admin_pb2.DescribeGroupLagResponse, lambda m: answers.lag("desk/1", m)),
    "reset": (admin_pb2.ResetOffsetsResponse, lambda m: answers.reset("desk/1", m)),
    "deleted-offsets": (coordinator_pb2.DeleteOffsetsResponse, lambda m: answers.deleted_offsets("desk/1", m)),
    "transactions": (admin_pb2.ListClusterTransactionsResponse, answers.transactions),
    "transaction": (admin_pb2.DescribedTransaction, answers.transaction),
    "prepared": (admin_pb2.ListPreparedTransactionsResponse, answers.transactions),
    "open": (admin_pb2.ListOpenTransactionsResponse, answers.transactions),
    "aborted": (admin_pb2.AbortClusterTransactionResponse, json_of),
    "ended": (admin_pb2.AbortHangingTransactionResponse, json_of),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_as_its_file_has_it(name: str) -> None:
    kind, answer = ANSWERS[name]
    told = {"every field": answer(filled(kind())), "no field": answer(kind())}
    text = json.dumps(told, indent=2) + "\n"
    file = GOLDEN / f"{name}.json"
    if os.environ.get("HEADRACE_GOLDEN") == "write":
        file.write_text(text)
    assert json.loads(text) == json.loads(file.read_text())


def test_every_file_has_its_answer() -> None:
    assert {file.stem for file in GOLDEN.glob("*.json")} == set(ANSWERS)


@pytest.mark.parametrize(
    ("message", "member", "value"),
    [
        (cluster_pb2.Partition(leader=-1), "leader", None),
        (cluster_pb2.Partition(leader=0), "leader", 0),
        (coordinator_pb2.MemberDescription(member_epoch=-1), "member_epoch", None),
        (transaction_pb2.TransactionListing(started_at_ms=-1), "started_at_ms", None),
        (pb.ConfigEntry(source=99), "source", 99),
        (pb.ConfigEntry(), "source", None),
        (pb.ConfigEntry(source=pb.DYNAMIC_DEFAULT_BROKER_CONFIG), "source", "cluster"),
        (admin_pb2.OpenTransaction(state=transaction_pb2.TXN_PREPARE_ABORT), "state", "prepare_abort"),
        (cluster_pb2.Node(grpc=cluster_pb2.Endpoint(host="::1", port=9292)), "grpc", "[::1]:9292"),
        (pb.ReplicaAssignment(), "replicas", []),
        (broker_pb2.LogDescription(size_bytes=2**62), "size_bytes", 2**62),
    ],
)
def test_the_rule(message: Message, member: str, value: Any) -> None:
    assert json_of(message)[member] == value


def test_errors_are_problems_that_name_where() -> None:
    shard = admin_pb2.UnansweredShard()
    shard.error.code, shard.error.message = int(ErrorCode.COORDINATOR_NOT_AVAILABLE), "nobody has it"
    problem = json_of(shard, "/v1/groups")["error"]
    assert (problem["code"], problem["detail"]) == ("COORDINATOR_NOT_AVAILABLE", "nobody has it")
    assert (problem["instance"], problem["retriable"]) == ("/v1/groups", True)


def test_a_token_is_text() -> None:
    token = transaction_pb2.PreparedToken(transactional_id="sink/3", producer_id=9, producer_epoch=2, nonce=0xFEEDBEEF)
    described = transaction_pb2.TransactionDescription(token=token)
    assert json_of(described)["token"] == text_of_token(token)
