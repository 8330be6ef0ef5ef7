"""
What each operation of the ``Admin`` service asks of its caller, for gRPC and, by ``route_table``, for REST.

Whoever carries an operation out, a broker, coordinator or controller, decides again as the caller, whose credential
goes with the call. ``ENTRIES`` here are what they alone decide, entry by entry, but for what is told from the image.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headrace_common.core.access.resources import CLUSTER_NAME, Operation, ResourceType
from headrace_common.rpc.access_rules import (
    ANYBODY,
    ENTRIES,
    NOBODY,
    AccessTable,
    Asks,
    AsksAny,
    AsksAnywhere,
    Wants,
    on_cluster,
    on_each,
)
from headrace_proto.v1 import admin_pb2, coordinator_pb2

_LOOKS: Final = on_cluster(Operation.DESCRIBE)
_CHANGES: Final = on_cluster(Operation.ALTER)


def _reset(request: admin_pb2.ResetOffsetsRequest) -> Iterator[Wants]:
    yield Wants(Operation.READ, ResourceType.GROUP, request.group_id)
    for topic in [*(one.topic for one in request.partitions), *(one.topic for one in request.to_offsets.offsets)]:
        yield Wants(Operation.READ, ResourceType.TOPIC, topic)


def _forget(request: coordinator_pb2.DeleteOffsetsRequest) -> Iterator[Wants]:
    yield Wants(Operation.DELETE, ResourceType.GROUP, request.group_id)
    for one in request.partitions:
        yield Wants(Operation.READ, ResourceType.TOPIC, one.topic)


def _abort(request: admin_pb2.AbortClusterTransactionRequest) -> Iterator[Wants]:
    yield Wants(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
    yield Wants(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)


ACCESS: Final[AccessTable] = {
    "Admin/DescribeCluster": _LOOKS,
    "Admin/DescribeStatus": _LOOKS,
    "Admin/DescribeCertificates": _LOOKS,
    "Admin/DescribeFeatures": _LOOKS,
    "Admin/DescribeRestore": _LOOKS,
    "Admin/ListReassignments": _LOOKS,
    "Admin/DescribeReassignments": _LOOKS,
    "Admin/UnregisterNode": _CHANGES,
    "Admin/ElectLeaders": _CHANGES,
    "Admin/AlterReassignments": _CHANGES,
    "Admin/DrainBroker": _CHANGES,
    "Admin/AdoptTopic": _CHANGES,
    "Admin/RebalanceCluster": _CHANGES,
    "Admin/DecommissionBroker": _CHANGES,
    "Admin/AbortHangingTransaction": _CHANGES,
    "Admin/CreateTopics": ENTRIES,
    "Admin/DeleteTopics": ENTRIES,
    "Admin/ListTopics": ENTRIES,
    "Admin/DescribeTopics": ENTRIES,
    "Admin/CreatePartitions": on_each(Operation.ALTER, ResourceType.TOPIC, lambda request: [request.name]),
    "Admin/DescribeConfigs": ENTRIES,
    "Admin/IncrementalAlterConfigs": ENTRIES,
    "Admin/DeleteRecords": ENTRIES,
    "Admin/DescribeLogs": ENTRIES,
    "Admin/ListGroups": ENTRIES,
    "Admin/DescribeGroups": ENTRIES,
    "Admin/DescribeGroupLag": on_each(Operation.DESCRIBE, ResourceType.GROUP, lambda request: [request.group_id]),
    "Admin/ResetOffsets": Asks(_reset),
    "Admin/DeleteGroups": ENTRIES,
    "Admin/DeleteOffsets": Asks(_forget),
    "Admin/ListTransactions": ENTRIES,
    "Admin/DescribeTransactions": ENTRIES,
    "Admin/ListPreparedTransactions": ENTRIES,
    "Admin/ListOpenTransactions": ENTRIES,
    "Admin/DecidePrepared": ENTRIES,
    "Admin/AbortTransaction": AsksAny(_abort),
    "Admin/AlterAccess": ENTRIES,
    "Admin/DescribeAccess": ENTRIES,
    "Admin/ExplainAccess": on_each(Operation.DESCRIBE, ResourceType.PRINCIPAL, lambda request: [request.principal]),
    "Admin/WhoCan": AsksAnywhere(Operation.DESCRIBE, ResourceType.PRINCIPAL),
    "Admin/WhyRefused": AsksAnywhere(Operation.DESCRIBE, ResourceType.PRINCIPAL),
    "Admin/Observed": ENTRIES,
    "Admin/CreateKey": ENTRIES,
    "Admin/ListKeys": ENTRIES,
    "Admin/DeleteKeys": ENTRIES,
    "Admin/AlterQuotas": on_cluster(Operation.ALTER_CONFIGS),
    "Admin/DescribeQuotas": on_cluster(Operation.DESCRIBE_CONFIGS),
    "Admin/WhoAmI": ANYBODY,
    "Admin/CreateUser": ENTRIES,
    "Admin/ChangePassword": ENTRIES,
    "Admin/DeleteUser": ENTRIES,
    "Admin/ListUsers": ENTRIES,
    "Admin/Login": NOBODY,
    "Auth/Authenticate": NOBODY,
    "Auth/DescribeSignOn": NOBODY,
}
