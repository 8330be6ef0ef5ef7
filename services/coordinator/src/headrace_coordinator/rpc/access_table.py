"""
What each operation of ``Coordinator`` and of ``TransactionCoordinator`` asks of its caller. See ``access_rules``.

Whatever is decided for each entry, and for as long as a stream lasts, ``engine.callers`` decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from headrace_common.core.access.resources import Operation, ResourceType
from headrace_common.rpc.access_rules import (
    ENTRIES,
    NODES,
    AccessTable,
    Asks,
    AsksAny,
    Rule,
    Wants,
    on_cluster,
    on_each,
)

_GROUP: Final = ResourceType.GROUP
_ID: Final = ResourceType.TRANSACTIONAL_ID


def _group(request: Any) -> tuple[str]:
    return (request.group_id,)


def _transactional_id(request: Any) -> tuple[str]:
    return (request.transactional_id,)


def _token(request: Any) -> tuple[str]:
    """A token alone decides nothing: it stands in lists and checkpoints."""
    return (request.token.transactional_id,)


def _owner(request: Any) -> tuple[str]:
    """An owner is a resource by its own name; ids ``owner/...`` are others."""
    return (request.owner,)


def _group_in_transaction(request: Any) -> tuple[Wants, ...]:
    return (
        Wants(Operation.READ, _GROUP, request.group_id),
        Wants(Operation.WRITE, _ID, request.transactional_id),
    )


def _altering_or_writing(request: Any) -> tuple[Wants, ...]:
    return (
        Wants(Operation.ALTER, ResourceType.CLUSTER),
        Wants(Operation.WRITE, _ID, request.transactional_id),
    )


_COORDINATOR: Final[Mapping[str, Rule]] = {
    "Coordinator/Membership": ENTRIES,  # READ GROUP, for each request
    "Coordinator/CommitOffsets": on_each(Operation.READ, _GROUP, _group),  # and READ TOPIC for each entry
    "Coordinator/TxnOffsetCommit": Asks(_group_in_transaction),  # and READ TOPIC for each entry
    "Coordinator/FetchOffsets": on_each(Operation.DESCRIBE, _GROUP, _group),  # and DESCRIBE TOPIC for each entry
    "Coordinator/ListGroups": ENTRIES,  # DESCRIBE
    "Coordinator/DescribeGroups": ENTRIES,  # DESCRIBE
    "Coordinator/DeleteGroups": ENTRIES,  # DELETE
    "Coordinator/DeleteOffsets": on_each(Operation.DELETE, _GROUP, _group),  # and READ TOPIC for each entry
    "Coordinator/WriteTxnMarkers": NODES,
    "Coordinator/Mark": NODES,
    "Coordinator/IdentifyCoordinator": NODES,
    "Coordinator/Observed": on_cluster(Operation.DESCRIBE),
    "Certificates/DescribeServed": on_cluster(Operation.DESCRIBE),
}

_TRANSACTIONS: Final[Mapping[str, Rule]] = {
    "TransactionCoordinator/InitTransactionalId": on_each(Operation.WRITE, _ID, _transactional_id),
    "TransactionCoordinator/EndTxn": ENTRIES,  # as End
    "TransactionCoordinator/End": ENTRIES,  # WRITE, for each request
    "TransactionCoordinator/PrepareTxn": on_each(Operation.WRITE, _ID, _transactional_id),
    "TransactionCoordinator/DecidePrepared": on_each(Operation.WRITE, _ID, _token),
    "TransactionCoordinator/InitOwner": on_each(Operation.WRITE, _ID, _owner),
    "TransactionCoordinator/CommitUnit": on_each(Operation.WRITE, _ID, _owner),
    "TransactionCoordinator/ListTransactions": ENTRIES,  # DESCRIBE
    "TransactionCoordinator/DescribeTransactions": ENTRIES,  # DESCRIBE; the token of a prepared one: WRITE
    "TransactionCoordinator/AbortTransaction": AsksAny(_altering_or_writing),
    "TransactionCoordinator/AddPartitionsToTxn": NODES,
    "TransactionCoordinator/Enrol": NODES,
}

ACCESS: Final[AccessTable] = MappingProxyType({**_COORDINATOR, **_TRANSACTIONS})
"""Of both services."""
