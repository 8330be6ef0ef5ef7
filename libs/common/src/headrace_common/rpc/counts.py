"""
How many entries a request may have in each of its lists: one table for all services.

The error interceptor asks before a handler sees the request. What a list costs is what is built for each of its
entries, here and in the answer, so the number is looked at first, and a request above it gets one refusal. A list that
is nested is counted over the whole request. ``test_counts.py`` compares the table with the descriptors: a new list of
a new operation needs its row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from google.protobuf.message import Message

from headrace_common.core.access.changes import BATCH_MAX
from headrace_common.core.access.grants import SCOPE_GRANTS_MAX
from headrace_common.core.access.issuers import ISSUERS_MAX
from headrace_common.core.access.resources import Operation, ResourceType
from headrace_common.core.access.tickets import RIGHTS_MAX
from headrace_common.core.errors import Rejected
from headrace_common.core.ids import PARTITIONS_PER_TOPIC_MAX

_FEW: Final = 1_000
_MANY: Final = 10_000
_ITEMS: Final = 20_000
"""Of a work group."""
_PARTITIONS: Final = 100_000
_ALL: Final = 1_000_000
"""Of lists that only nodes send, or that are bounded by those around them: no cluster has more of anything."""
_STATES: Final = 100
"""Of enumerations that have a handful of values."""

_NEW_TOPICS: Final = {
    "topics": _FEW,
    "topics.configs": _PARTITIONS,
    "topics.assignments": PARTITIONS_PER_TOPIC_MAX,
    "topics.assignments.replicas": _ALL,
}
_NEW_PARTITIONS: Final = {"assignments": PARTITIONS_PER_TOPIC_MAX, "assignments.replicas": _ALL}
_CONFIGS: Final = {"resources": _FEW}
_CONFIG_CHANGES: Final = {"resources": _FEW, "resources.changes": _PARTITIONS}
_REASSIGNMENTS: Final = {"reassignments": _MANY, "reassignments.replicas": _ALL}
_MARKERS: Final = {"markers": _MANY, "markers.partitions": _PARTITIONS}
_MARKERS_ASKED: Final = {f"ask.{path}": most for path, most in _MARKERS.items()}
_BY_TOPIC: Final = {"partitions": _MANY, "partitions.partitions": _PARTITIONS}
_PARTITION_LIST: Final = {"partitions": _MANY}
_LISTED_TRANSACTIONS: Final = {"states": _STATES, "producer_ids": _MANY}

_ACCESS: Final = {
    "changes": BATCH_MAX,
    "accept_loss_of": _MANY,
    "changes.rule.grant.operations": BATCH_MAX * len(Operation),
    "changes.binding.targets": _MANY,
    "changes.role.operations": BATCH_MAX * len(ResourceType),
    "changes.role.operations.operations": _MANY,
}
_NEW_KEY: Final = {"scope": SCOPE_GRANTS_MAX, "scope.operations": SCOPE_GRANTS_MAX * len(Operation)}
_VERIFIERS: Final = {"verifiers": _STATES}
_KEY_IDS: Final = {"ids": _MANY}

LIMITS: Final[Mapping[str, Mapping[str, int]]] = {
    "Admin/AlterAccess": _ACCESS,
    "Admin/CreateKey": _NEW_KEY,
    "Admin/DeleteKeys": _KEY_IDS,
    "Admin/AlterQuotas": {"changes": BATCH_MAX},
    "Controller/AlterAccess": _ACCESS,
    "Controller/CreateKey": _NEW_KEY,
    "Controller/DeleteKeys": _KEY_IDS,
    "Controller/AlterQuotas": {"changes": BATCH_MAX},
    "Admin/CreateUser": _VERIFIERS,
    "Admin/ChangePassword": _VERIFIERS,
    "Controller/CreateUser": _VERIFIERS,
    "Controller/ChangePassword": _VERIFIERS,
    "Tickets/CheckAccess": {"questions": _FEW},
    "Tickets/IssueTicket": {"questions": RIGHTS_MAX},
    "Admin/CreateTopics": _NEW_TOPICS,
    "Admin/DeleteTopics": {"names": _FEW},
    "Admin/DescribeTopics": {"names": _MANY},
    "Admin/CreatePartitions": _NEW_PARTITIONS,
    "Admin/DescribeConfigs": _CONFIGS,
    "Admin/IncrementalAlterConfigs": _CONFIG_CHANGES,
    "Admin/DeleteRecords": _PARTITION_LIST,
    "Admin/DescribeLogs": {"request.topic_ids": _MANY},
    "Admin/ElectLeaders": _PARTITION_LIST,
    "Admin/AlterReassignments": _REASSIGNMENTS,
    "Admin/ListReassignments": _PARTITION_LIST,
    "Admin/DescribeReassignments": _PARTITION_LIST,
    "Admin/RebalanceCluster": {"topics": _MANY},
    "Admin/ListGroups": {"states": _STATES},
    "Admin/DescribeGroups": {"group_ids": _MANY},
    "Admin/DescribeGroupLag": {"topics": _MANY},
    "Admin/ResetOffsets": {**_BY_TOPIC, "to_offsets.offsets": _PARTITIONS},
    "Admin/DeleteGroups": {"group_ids": _MANY},
    "Admin/DeleteOffsets": _BY_TOPIC,
    "Admin/ListTransactions": _LISTED_TRANSACTIONS,
    "Admin/DescribeTransactions": {"transactional_ids": _MANY},
    "Admin/ListOpenTransactions": {"topics": _MANY},
    "Broker/Produce": _PARTITION_LIST,
    "Broker/Fetch": _PARTITION_LIST,
    "Broker/ListOffsets": _PARTITION_LIST,
    "Broker/Metadata": {"topics": _MANY},
    "Broker/DeleteRecords": _PARTITION_LIST,
    "Broker/DescribeLogs": {"topic_ids": _MANY},
    "Broker/Replicate": {"positions": _MANY, "withdrawn": _ALL},
    "Broker/LogEnds": _PARTITION_LIST,
    "Broker/FindCoordinator": {"keys": _FEW},
    "Broker/WriteTxnMarkers": _MARKERS,
    "Broker/Mark": _MARKERS_ASKED,
    "Broker/WriteAudit": {"lines": _FEW},
    "Broker/DescribeProducers": _PARTITION_LIST,
    "Broker/Inventory": {"topic_ids": _MANY},
    "Controller/RegisterNode": {"damaged": _ALL},
    "Controller/Heartbeat": {"keys_wanted": ISSUERS_MAX},
    "Controller/CreateTopics": _NEW_TOPICS,
    "Controller/DeleteTopics": {"names": _FEW},
    "Controller/DescribeTopics": {"names": _MANY},
    "Controller/CreatePartitions": _NEW_PARTITIONS,
    "Controller/DescribeConfigs": _CONFIGS,
    "Controller/IncrementalAlterConfigs": _CONFIG_CHANGES,
    "Controller/ConfirmDeletions": {"topic_ids": _ALL, "partitions": _ALL},
    "Controller/AlterPartitions": {"partitions": _FEW, "partitions.isr": _PARTITIONS},
    "Controller/ElectLeaders": _PARTITION_LIST,
    "Controller/AlterReassignments": _REASSIGNMENTS,
    "Controller/ListReassignments": _PARTITION_LIST,
    "Coordinator/Membership": {
        "classic_join.protocols": 16,
        "classic_join.protocols.subscription.topics": 16 * _MANY,
        "classic_join.protocols.subscription.owned": 16 * _MANY,
        "classic_join.protocols.subscription.owned.partitions": _ALL,
        "classic_sync.assignments": _PARTITIONS,
        "classic_sync.assignments.assignment.partitions": _ALL,
        "classic_sync.assignments.assignment.partitions.partitions": _ALL,
        "consumer_heartbeat.subscription.topics": _MANY,
        "consumer_heartbeat.owned.topics": _MANY,
        "consumer_heartbeat.owned.topics.partitions": _PARTITIONS,
        "work_heartbeat.declaration.items": _ITEMS,
        "work_heartbeat.declaration.terms": _MANY,
        "work_heartbeat.owned.ids": _ITEMS,
        "work_heartbeat.lags.items": _ITEMS,
        "work_heartbeat.refused": _ITEMS,
        "work_heartbeat.ended": _MANY,
    },
    "Coordinator/CommitOffsets": {"offsets": _MANY},
    "Coordinator/TxnOffsetCommit": {"offsets": _MANY},
    "Coordinator/WriteTxnMarkers": _MARKERS,
    "Coordinator/Mark": _MARKERS_ASKED,
    "Coordinator/FetchOffsets": _BY_TOPIC,
    "Coordinator/ListGroups": {"states": _STATES},
    "Coordinator/DescribeGroups": {"group_ids": _FEW},
    "Coordinator/DeleteGroups": {"group_ids": _FEW},
    "Coordinator/DeleteOffsets": _BY_TOPIC,
    "StreamsQuery/LocateKey": {"columns": _FEW},
    "TransactionCoordinator/AddPartitionsToTxn": {"transactions": _FEW, "transactions.partitions": _ALL},
    "TransactionCoordinator/Enrol": {"ask.transactions": _FEW, "ask.transactions.partitions": _ALL},
    "TransactionCoordinator/CommitUnit": {"tokens": _MANY},
    "TransactionCoordinator/ListTransactions": _LISTED_TRANSACTIONS,
    "TransactionCoordinator/DescribeTransactions": {"transactional_ids": _FEW},
}
"""Operation to list to the most entries; outer lists come before those in them, so that few entries are walked."""

_PACKAGE: Final = "/headrace.v1."

Deserialize = Callable[[bytes], Any]


def counting(method: str, deserialize: Deserialize) -> Deserialize:
    """
    ``deserialize`` of the requests of ``method`` (as gRPC names it), with the limits of the table.

    What it returns raises ``Rejected`` for a request above one.
    """
    limits = LIMITS.get(method.removeprefix(_PACKAGE)) if method.startswith(_PACKAGE) else None
    if limits is None:
        return deserialize
    paths = tuple((tuple(path.split(".")), most) for path, most in limits.items())

    def read(raw: bytes) -> Any:
        message = deserialize(raw)
        for path, most in paths:
            count = len(getattr(message, path[0])) if len(path) == 1 else _count(message, path)
            if count > most:
                raise Rejected(f"the request has {count} {'.'.join(path)}; {most} is the most: split it")
        return message

    return read


def _count(message: Message, path: tuple[str, ...]) -> int:
    """Entries of the list at ``path``, over all messages on the way there."""
    found: Iterable[Any] = (message,)
    for name in path[:-1]:
        found = [inner for one in found for inner in _inside(getattr(one, name))]
    return sum(len(getattr(one, path[-1])) for one in found)


def _inside(value: Any) -> Iterable[Any]:
    return (value,) if isinstance(value, Message) else value
