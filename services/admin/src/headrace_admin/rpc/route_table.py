"""
What each route of REST asks of its caller: the operation of the ``Admin`` service that it stands for, whose row of
``access_table`` holds, or rights of its own. A test compares it with the application's routes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias

from google.protobuf.message import Message
from starlette.datastructures import QueryParams
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from headrace_admin.rpc.access_table import ACCESS
from headrace_common.core.access.resources import Operation, ResourceType
from headrace_common.core.errors import ClusterAuthorizationFailed
from headrace_common.rpc.access_rules import ANYBODY, NOBODY, Asks, AsksAny, Rule, Wants
from headrace_proto.v1 import access_pb2, admin_pb2, coordinator_pb2
from headrace_proto.v1 import controller_pb2 as pb

Given: TypeAlias = Mapping[str, str]
"""What a request's path and query say."""


@dataclass(frozen=True, slots=True)
class As:
    """A route that stands for an operation."""

    operation: str
    """Of the ``Admin`` service."""
    request: Callable[[Given], Message] | None = None
    """As far as path and query tell it, where the operation's row reads it. The rest is decided behind it."""


def _on(operation: Operation, type: ResourceType, name: str) -> Asks:
    """A right on the resource that is called as ``name`` of the path says."""
    return Asks(lambda given: (Wants(operation, type, given[name]),))


ROUTES: Final[Mapping[str, As | Rule]] = {
    "GET /health/live": NOBODY,
    "GET /health/ready": NOBODY,
    "GET /health/cluster": NOBODY,
    "GET /docs": ANYBODY,
    "GET /openapi.json": ANYBODY,
    "POST /v1/login": As("Login"),
    "POST /v1/logout": ANYBODY,
    "GET /v1/session": ANYBODY,
    "GET /v1/cluster": As("DescribeCluster"),
    "GET /v1/cluster/status": As("DescribeStatus"),
    "GET /v1/cluster/certificates": As("DescribeCertificates"),
    "GET /v1/cluster/features": As("DescribeFeatures"),
    "GET /v1/cluster/configs": As("DescribeConfigs"),
    "PATCH /v1/cluster/configs": As("IncrementalAlterConfigs"),
    "POST /v1/cluster/rebalance": As("RebalanceCluster"),
    "DELETE /v1/cluster/nodes/{node}": As("UnregisterNode"),
    "GET /v1/brokers": As("DescribeCluster"),
    "GET /v1/brokers/{broker}": As("DescribeCluster"),
    "DELETE /v1/brokers/{broker}": As("UnregisterNode"),
    "GET /v1/brokers/{broker}/logs": As("DescribeLogs"),
    "GET /v1/brokers/{broker}/configs": As("DescribeConfigs"),
    "PATCH /v1/brokers/{broker}/configs": As("IncrementalAlterConfigs"),
    "POST /v1/brokers/{broker}/drain": As("DrainBroker"),
    "DELETE /v1/brokers/{broker}/drain": As("DrainBroker"),
    "GET /v1/brokers/{broker}/decommission": As("DecommissionBroker"),
    "POST /v1/brokers/{broker}/decommission": As("DecommissionBroker"),
    "POST /v1/elections": As("ElectLeaders"),
    "GET /v1/reassignments": As("DescribeReassignments"),
    "POST /v1/reassignments": As("AlterReassignments"),
    "POST /v1/reassignments/cancel": As("AlterReassignments"),
    "GET /v1/reassignments/throttle": As("DescribeReassignments"),
    "PUT /v1/reassignments/throttle": As("IncrementalAlterConfigs"),
    "GET /v1/restore": As("DescribeRestore"),
    "GET /v1/strays": As("DescribeRestore"),
    "POST /v1/strays/{topic_id}/adopt": As("AdoptTopic"),
    "GET /v1/topics": As("ListTopics"),
    "POST /v1/topics": As("CreateTopics"),
    "GET /v1/topics/{topic}": As("DescribeTopics"),
    "DELETE /v1/topics/{topic}": As("DeleteTopics"),
    "GET /v1/topics/{topic}/logs": As("DescribeTopics"),
    "GET /v1/topics/{topic}/configs": As("DescribeConfigs"),
    "PATCH /v1/topics/{topic}/configs": As("IncrementalAlterConfigs"),
    "POST /v1/topics/{topic}/partitions": As(
        "CreatePartitions", lambda given: pb.CreatePartitionsRequest(name=given["topic"])
    ),
    "POST /v1/topics/{topic}/trim": _on(Operation.DELETE, ResourceType.TOPIC, "topic"),
    "POST /v1/topics/{topic}/records": _on(Operation.WRITE, ResourceType.TOPIC, "topic"),
    "GET /v1/topics/{topic}/partitions/{partition}/records": _on(Operation.READ, ResourceType.TOPIC, "topic"),
    "GET /v1/groups": As("ListGroups"),
    "GET /v1/groups/{group:path}": As("DescribeGroups"),
    "DELETE /v1/groups/{group:path}": As("DeleteGroups"),
    "GET /v1/groups/{group:path}/lag": As(
        "DescribeGroupLag", lambda given: admin_pb2.DescribeGroupLagRequest(group_id=given["group"])
    ),
    "POST /v1/groups/{group:path}/offsets/reset": As(
        "ResetOffsets", lambda given: admin_pb2.ResetOffsetsRequest(group_id=given["group"])
    ),
    "POST /v1/groups/{group:path}/offsets/delete": As(
        "DeleteOffsets", lambda given: coordinator_pb2.DeleteOffsetsRequest(group_id=given["group"])
    ),
    "GET /v1/streams": As("ListGroups"),
    "GET /v1/streams/{app}/tasks": As("DescribeGroups"),
    "GET /v1/streams/{app}/stores": _on(Operation.READ, ResourceType.GROUP, "app"),
    "GET /v1/streams/{app}/stores/{store}/keys/{key:path}": _on(Operation.READ, ResourceType.GROUP, "app"),
    "GET /v1/transactions": As("ListTransactions"),
    "GET /v1/transactions/{transactional_id:path}": As("DescribeTransactions"),
    "POST /v1/transactions/{transactional_id:path}/abort": As(
        "AbortTransaction",
        lambda given: admin_pb2.AbortClusterTransactionRequest(transactional_id=given["transactional_id"]),
    ),
    "GET /v1/transactions-prepared": As("ListPreparedTransactions"),
    "POST /v1/transactions-prepared/commit": As("DecidePrepared"),
    "POST /v1/transactions-prepared/abort": As("DecidePrepared"),
    "GET /v1/transactions-open": As("ListOpenTransactions"),
    "GET /v1/transactions-hanging": As("ListOpenTransactions"),
    "POST /v1/transactions-hanging/abort": As("AbortHangingTransaction"),
    "GET /v1/access": As("DescribeAccess"),
    "POST /v1/access/changes": As("AlterAccess"),
    "GET /v1/access/observed": As("Observed"),
    "GET /v1/access/explain": As(
        "ExplainAccess", lambda given: access_pb2.ExplainAccessRequest(principal=given.get("principal", ""))
    ),
    "GET /v1/access/who-can": As("WhoCan"),
    "GET /v1/access/refusals/{id}": As("WhyRefused"),
    "GET /v1/keys": As("ListKeys"),
    "POST /v1/keys": As("CreateKey"),
    "DELETE /v1/keys/{id}": As("DeleteKeys"),
    "GET /v1/quotas": As("DescribeQuotas"),
    "POST /v1/quotas/changes": As("AlterQuotas"),
    "GET /v1/users": As("ListUsers"),
    "POST /v1/users": As("CreateUser"),
    "PUT /v1/users/{name}/password": As("ChangePassword"),
    "DELETE /v1/users/{name}": As("DeleteUser"),
    "GET /v1/whoami": As("WhoAmI"),
}
"""By verb and path, as the application has them."""


class RouteRules:
    """
    What is asked of a request to one of ``routes``, before it is routed; where no route is, a credential.

    Raises:
        ClusterAuthorizationFailed: the route has no row.
    """

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self.routes = routes

    def __call__(self, scope: Scope) -> Rule:
        asked = dict(scope, method="GET") if scope["method"] == "HEAD" else scope
        for route in self.routes:
            match, more = route.matches(asked)
            if match is Match.FULL:
                given = {**QueryParams(scope.get("query_string", b"")), **more.get("path_params", {})}
                return _rule_for(f"{asked['method']} {getattr(route, 'path', '')}", given)
        return ANYBODY


def _rule_for(route: str, given: Given) -> Rule:
    row = ROUTES.get(route)
    if row is None:
        raise ClusterAuthorizationFailed(f"{route} is in no table of rights, so nobody may")
    if not isinstance(row, As):
        return _reading(row, given)
    return _reading(ACCESS[f"Admin/{row.operation}"], None if row.request is None else row.request(given))


def _reading(rule: Rule, request: Any) -> Rule:
    """The rule of this request, whatever it is asked of."""
    if isinstance(rule, (Asks, AsksAny)):
        return replace(rule, wants=partial(_wants, rule.wants, request))
    return rule


def _wants(wants: Callable[[Any], Iterable[Wants]], request: Any, _: Any) -> Iterable[Wants]:
    return wants(request)
