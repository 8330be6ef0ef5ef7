"""
Which operations are for other nodes of the cluster alone, and for which of them: one table for all services.

``test_node_rules.py`` compares it with the descriptors: a new operation needs its row. Whether a caller is a node is
found out by ``rpc.node_gate``; what it says of itself is a ``NodeKey``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from headrace_common.core.errors import ClusterAuthorizationFailed, Rejected
from headrace_common.core.ids import NodeId
from headrace_common.core.image import NodeKey, Role

ANYONE: Final = None
_DIGITS_MAX: Final = 10
_ALL: Final = frozenset(Role)
_ADMIN: Final = frozenset({Role.ADMIN})
_BROKER: Final = frozenset({Role.BROKER})
_CONTROLLER: Final = frozenset({Role.CONTROLLER})
_COORDINATOR: Final = frozenset({Role.COORDINATOR})

WHO_MAY_CALL: Final[Mapping[str, frozenset[Role] | None]] = {
    "Broker/Produce": ANYONE,  # to internal topics, coordinators: the engine asks
    "Broker/Fetch": ANYONE,
    "Broker/ListOffsets": ANYONE,
    "Broker/Metadata": ANYONE,
    "Broker/InitProducerId": ANYONE,
    "Broker/FindCoordinator": ANYONE,
    "Broker/DeleteRecords": _ADMIN,
    "Broker/DescribeLogs": _ADMIN,
    "Broker/DescribeProducers": _ADMIN,
    "Broker/Replicate": _BROKER,
    "Broker/LogEnds": _CONTROLLER,
    "Broker/Inventory": _CONTROLLER,
    "Broker/Identify": _CONTROLLER,
    "Broker/WriteTxnMarkers": _COORDINATOR | _ADMIN,
    "Broker/Mark": _COORDINATOR,
    "Broker/Observed": _ADMIN,
    "Broker/WriteAudit": _ALL,
    "Controller/RegisterNode": _ALL,
    "Controller/Heartbeat": _ALL,
    "Controller/UnregisterNode": _ALL,
    "Controller/WatchMetadata": _ALL,
    "Controller/DescribeCluster": _ADMIN,
    "Controller/CreateTopics": _ADMIN,
    "Controller/DeleteTopics": _ADMIN,
    "Controller/ListTopics": _ADMIN,
    "Controller/DescribeTopics": _ADMIN,
    "Controller/CreatePartitions": _ADMIN,
    "Controller/DescribeConfigs": _ADMIN,
    "Controller/IncrementalAlterConfigs": _ADMIN,
    "Controller/AllocateProducerIds": _BROKER,
    "Controller/ConfirmDeletions": _BROKER,
    "Controller/AlterPartitions": _BROKER,
    "Controller/ElectLeaders": _ADMIN,
    "Controller/AlterReassignments": _ADMIN,
    "Controller/ListReassignments": _ADMIN,
    "Controller/DrainBroker": _ADMIN,
    "Controller/EnsureInternalTopic": _BROKER | _COORDINATOR,
    "Controller/DescribeRestore": _ADMIN,
    "Controller/AdoptTopic": _ADMIN,
    "Controller/AlterAccess": _ADMIN,
    "Controller/CreateKey": _ADMIN,
    "Controller/DeleteKeys": _ADMIN,
    "Controller/AlterQuotas": _ADMIN,
    "Controller/Observed": _ADMIN,
    "Controller/CreateUser": _ADMIN,
    "Controller/ChangePassword": _ADMIN,
    "Controller/DeleteUser": _ADMIN,
    "Controller/Login": _ADMIN,
    "Coordinator/Membership": ANYONE,
    "Coordinator/CommitOffsets": ANYONE,
    "Coordinator/TxnOffsetCommit": ANYONE,
    "Coordinator/FetchOffsets": ANYONE,
    "Coordinator/WriteTxnMarkers": _COORDINATOR,
    "Coordinator/Mark": _COORDINATOR,
    "Coordinator/ListGroups": _ADMIN,
    "Coordinator/DescribeGroups": _ADMIN,
    "Coordinator/DeleteGroups": _ADMIN,
    "Coordinator/DeleteOffsets": _ADMIN,
    "Coordinator/IdentifyCoordinator": _CONTROLLER,
    "Coordinator/Observed": _ADMIN,
    "TransactionCoordinator/InitTransactionalId": ANYONE,
    "TransactionCoordinator/AddPartitionsToTxn": _BROKER | _COORDINATOR,
    "TransactionCoordinator/Enrol": _BROKER | _COORDINATOR,
    "TransactionCoordinator/EndTxn": ANYONE,
    "TransactionCoordinator/End": ANYONE,
    "TransactionCoordinator/PrepareTxn": ANYONE,
    "TransactionCoordinator/DecidePrepared": ANYONE,
    "TransactionCoordinator/InitOwner": ANYONE,
    "TransactionCoordinator/CommitUnit": ANYONE,
    "TransactionCoordinator/ListTransactions": _ADMIN,
    "TransactionCoordinator/DescribeTransactions": _ADMIN,
    "TransactionCoordinator/AbortTransaction": _ADMIN,
    "Certificates/DescribeServed": _ADMIN,
    "Tickets/CheckAccess": ANYONE,
    "Tickets/IssueTicket": ANYONE,
    "Admin/DescribeCluster": ANYONE,
    "Admin/CreateTopics": ANYONE,
    "Admin/DeleteTopics": ANYONE,
    "Admin/ListTopics": ANYONE,
    "Admin/DescribeTopics": ANYONE,
    "Admin/CreatePartitions": ANYONE,
    "Admin/DescribeConfigs": ANYONE,
    "Admin/IncrementalAlterConfigs": ANYONE,
    "Admin/DeleteRecords": ANYONE,
    "Admin/DescribeLogs": ANYONE,
    "Admin/UnregisterNode": ANYONE,
    "Admin/ElectLeaders": ANYONE,
    "Admin/AlterReassignments": ANYONE,
    "Admin/ListReassignments": ANYONE,
    "Admin/DrainBroker": ANYONE,
    "Admin/DescribeRestore": ANYONE,
    "Admin/DescribeFeatures": ANYONE,
    "Admin/AdoptTopic": ANYONE,
    "Admin/DescribeStatus": ANYONE,
    "Admin/DescribeCertificates": ANYONE,
    "Admin/DescribeReassignments": ANYONE,
    "Admin/RebalanceCluster": ANYONE,
    "Admin/DecommissionBroker": ANYONE,
    "Admin/ListGroups": ANYONE,
    "Admin/DescribeGroups": ANYONE,
    "Admin/DescribeGroupLag": ANYONE,
    "Admin/ResetOffsets": ANYONE,
    "Admin/DeleteGroups": ANYONE,
    "Admin/DeleteOffsets": ANYONE,
    "Admin/ListTransactions": ANYONE,
    "Admin/DescribeTransactions": ANYONE,
    "Admin/ListPreparedTransactions": ANYONE,
    "Admin/ListOpenTransactions": ANYONE,
    "Admin/DecidePrepared": ANYONE,
    "Admin/AbortTransaction": ANYONE,
    "Admin/AbortHangingTransaction": ANYONE,
    "Admin/AlterAccess": ANYONE,
    "Admin/DescribeAccess": ANYONE,
    "Admin/ExplainAccess": ANYONE,
    "Admin/WhoCan": ANYONE,
    "Admin/WhyRefused": ANYONE,
    "Admin/Observed": ANYONE,
    "Admin/CreateKey": ANYONE,
    "Admin/ListKeys": ANYONE,
    "Admin/DeleteKeys": ANYONE,
    "Admin/AlterQuotas": ANYONE,
    "Admin/DescribeQuotas": ANYONE,
    "Admin/WhoAmI": ANYONE,
    "Admin/CreateUser": ANYONE,
    "Admin/ChangePassword": ANYONE,
    "Admin/DeleteUser": ANYONE,
    "Admin/ListUsers": ANYONE,
    "Admin/Login": ANYONE,
    "Auth/Authenticate": ANYONE,
    "Auth/DescribeSignOn": ANYONE,
    "StreamsQuery/DescribeStores": ANYONE,
    "StreamsQuery/LocateKey": ANYONE,
    "StreamsQuery/QueryStore": ANYONE,
}
"""By ``SERVICE/OPERATION``. Operators ask the admin service, which asks the others as a node."""


NO_TOKEN: Final = (
    "the call showed no node token that is valid here. Programs ask the admin service; a node is started with "
    "--node-token-file, a file that holds the cluster's token"
)
NO_CERTIFICATE: Final = (
    "the call showed no certificate of a node, or of another node than it says. Programs ask the admin service; a node "
    "comes to the internal listener, with a certificate that names it as spiffe://TRUST-DOMAIN/ROLE"
)


def refusal(
    operation: str, allowed: Collection[Role], caller: NodeKey | None, unproven: str = NO_TOKEN
) -> ClusterAuthorizationFailed | None:
    """
    Why ``caller`` may not call ``operation``; None: it may.

    Args:
        allowed: its row of the table.
        caller: the node that it has shown to be; None: none.
        unproven: what is said then.
    """
    if caller is None:
        return ClusterAuthorizationFailed(f"{operation} is for nodes of the cluster: {unproven}")
    if caller.role in allowed:
        return None
    names = " and ".join(sorted(role.value for role in allowed))
    return ClusterAuthorizationFailed(f"{operation} is for {names} nodes, and {caller} is none")


def foreign(caller: NodeKey | None, claimed: NodeKey) -> ClusterAuthorizationFailed:
    """What is said to a caller that speaks for another node."""
    who = "a call without a valid node token" if caller is None else str(caller)
    return ClusterAuthorizationFailed(f"{who} cannot speak for {claimed}; is a node id given twice?")


def host_of(role: str) -> str:
    """The name that the certificates of all nodes of ``role`` have: other nodes ask for it, whatever the address is."""
    return f"{role}.headrace"


def uri_of(trust_domain: str, role: str) -> str:
    """How a certificate names the nodes of ``role``; ``/ID`` behind it names one of them."""
    return f"spiffe://{trust_domain}/{role}"


def node_named(uri: str, trust_domain: str) -> tuple[Role, NodeId | None] | None:
    """The role that ``uri`` names, and the id if it names one; None: no node of ``trust_domain``."""
    for role in Role:
        whole = uri_of(trust_domain, role.value)
        number = uri.removeprefix(f"{whole}/")
        if uri == whole:
            return role, None
        if number != uri and _is_number(number):
            return role, NodeId(int(number))
    return None


def node_key_of(text: str) -> NodeKey:
    """
    The inverse of ``str(NodeKey)``.

    Raises:
        Rejected: it names no node.
    """
    name, _, number = text.rpartition("-")
    if _is_number(number):
        for role in Role:
            if role.value == name:
                return NodeKey(role, NodeId(int(number)))
    raise Rejected(f"{text[:80]!r} names no node; names are like broker-1")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
