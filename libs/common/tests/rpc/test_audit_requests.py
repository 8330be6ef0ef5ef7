"""What requests are about, for the audit: the table against that of the operations, and each form of a request."""

from __future__ import annotations

import pytest

from headrace_common.core.access.resources import CLUSTER_NAME, Operation, ResourceType
from headrace_common.core.audit.events import change_of
from headrace_common.core.errors import ErrorCode
from headrace_common.rpc.audit_requests import ITEMS_MAX, ROWS, VALUES_MAX, Item, items_of, only_asks, statuses_of
from headrace_common.runtime.auditing import CHANGES
from headrace_proto.v1 import access_pb2, admin_pb2, controller_pb2, coordinator_pb2, transaction_pb2

_T = ResourceType


def test_every_operation_that_changes_something_has_its_row() -> None:
    assert ROWS.keys() == CHANGES.keys()


def test_each_entry_is_an_item_with_what_was_asked_for() -> None:
    request = controller_pb2.CreateTopicsRequest(timeout_ms=5)
    request.topics.add(name="a", partition_count=3, configs={"retention.ms": "1"})
    request.topics.add(name="b")
    first, second = items_of("Controller/CreateTopics", request)
    assert first[:3] == (Operation.CREATE, _T.TOPIC, "a")
    assert first.asked == {"name": "a", "partition_count": "3", "configs.retention.ms": "1", "timeout_ms": "5"}
    assert (second.name, second.asked) == ("b", {"name": "b", "timeout_ms": "5"})


def test_settings_are_of_topics_or_of_the_cluster() -> None:
    request = controller_pb2.IncrementalAlterConfigsRequest()
    for type, name in ((controller_pb2.TOPIC_CONFIG, "a"), (controller_pb2.BROKER_CONFIG, "2"), (2, "")):
        part = request.resources.add(resource=controller_pb2.ConfigResource(type=type, name=name))
        part.changes.add(name="retention.ms", value="7")
        part.changes.add(name="x", op=controller_pb2.AlterConfigOp.DELETE)
    items = items_of("Controller/IncrementalAlterConfigs", request)
    assert [(item.type, item.name) for item in items] == [
        (_T.TOPIC, "a"),
        (_T.CLUSTER, "broker 2"),
        (_T.CLUSTER, CLUSTER_NAME),
    ]
    assert items[0].asked == {"retention.ms": "SET 7", "x": "DELETE"}


def test_changes_of_access_are_about_whom_they_are_for() -> None:
    request = access_pb2.AlterAccessRequest(mode="closed")
    request.changes.add(block="User:a", remove=True)
    request.changes.add(rule=access_pb2.AccessRule(principal="User:b"))
    request.changes.add(binding=access_pb2.AccessBinding(principal="Group:c", role="viewer"))
    request.changes.add(role=access_pb2.AccessRole(name="own"))
    items = items_of("Controller/AlterAccess", request)
    assert [item.name for item in items] == ["User:a", "User:b", "Group:c", "role own"]
    assert items[0].asked == {"mode": "closed", "remove": "True", "block": "User:a"}
    assert items[2].asked["binding.role"] == "viewer"
    assert [item.name for item in items_of("Controller/AlterAccess", access_pb2.AlterAccessRequest(mode="closed"))] == [
        ""
    ]


def test_tokens_in_requests_are_not_shown() -> None:
    token = transaction_pb2.PreparedToken(transactional_id="t", producer_id=77, producer_epoch=3)
    (item,) = items_of("Admin/DecidePrepared", transaction_pb2.DecidePreparedRequest(token=token, commit=True))
    assert item[:3] == (Operation.WRITE, _T.TRANSACTIONAL_ID, "t")
    assert change_of({}, item.asked).after == {
        "commit": "True",
        "token.producer_epoch": "***",
        "token.producer_id": "***",
        "token.transactional_id": "***",
    }


def test_what_proves_a_password_is_not_shown() -> None:
    request = access_pb2.CreateUserRequest(name="alice", verifiers=[access_pb2.ScramVerifier(salt=b"1" * 16)])
    (item,) = items_of("Controller/CreateUser", request)
    assert (item.name, item.asked) == ("User:alice", {"name": "alice", "verifiers": "***"})


def test_a_request_with_too_many_entries_is_one_item_of_bounded_size() -> None:
    names = [f"t{n}" for n in range(ITEMS_MAX + 1)]
    (item,) = items_of("Controller/DeleteTopics", controller_pb2.DeleteTopicsRequest(names=names))
    assert item.name == "t0"
    request = controller_pb2.AlterReassignmentsRequest()
    for n in range(10_000):
        request.reassignments.add(topic_id=b"x" * 16, partition=n, replicas=[1, 2, 3])
    (item,) = items_of("Controller/AlterReassignments", request)
    assert len(item.asked) == VALUES_MAX


def test_a_request_without_entries_is_an_item_too() -> None:
    assert items_of("Controller/DeleteTopics", controller_pb2.DeleteTopicsRequest()) == [
        Item(Operation.DELETE, _T.TOPIC, "", {})
    ]


def test_how_each_item_ended_stands_in_the_answer() -> None:
    answer = controller_pb2.CreateTopicsResponse()
    answer.topics.add(name="a")
    answer.topics.add(name="b", error=36)
    assert statuses_of(answer, 2) == [ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS]
    elections = controller_pb2.ElectLeadersResponse()
    elections.partitions.add()
    elections.partitions.add(error=84)
    assert statuses_of(elections, 1) == [ErrorCode.ELECTION_NOT_NEEDED], "the first that failed, of one item"
    assert statuses_of(coordinator_pb2.DeleteGroupsResponse(), 2) == [ErrorCode.NONE] * 2
    assert statuses_of(access_pb2.CreateKeyResponse(key="hrk_x"), 1) == [ErrorCode.NONE]


@pytest.mark.parametrize(
    ("request_", "asks"),
    [
        (controller_pb2.CreateTopicsRequest(validate_only=True), True),
        (controller_pb2.CreateTopicsRequest(), False),
        (admin_pb2.ResetOffsetsRequest(), True),
        (admin_pb2.ResetOffsetsRequest(execute=True), False),
        (controller_pb2.DeleteTopicsRequest(), False),
    ],
)
def test_rehearsals_change_nothing(request_: object, asks: bool) -> None:
    assert only_asks(request_) is asks
