"""What each operation asks of its caller; ``AccessGate`` reads it. What the engine asks for stands above its rows."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from headrace_common.core.access.resources import Operation, ResourceType
from headrace_common.core.image import Role
from headrace_common.rpc.access_rules import ANYBODY, ENTRIES, NOBODY, NODES, AccessTable, AsksAnywhere, on_cluster

ACCESS: Final[AccessTable] = MappingProxyType(
    {
        # WRITE TOPIC, with a fencing token FENCE TOPIC besides; WRITE TRANSACTIONAL_ID
        "Broker/Produce": ENTRIES,
        # READ TOPIC
        "Broker/Fetch": ENTRIES,
        # DESCRIBE TOPIC; Metadata of all topics has those that may be described
        "Broker/ListOffsets": ENTRIES,
        "Broker/Metadata": ENTRIES,
        # DESCRIBE GROUP or TRANSACTIONAL_ID
        "Broker/FindCoordinator": ENTRIES,
        "Broker/InitProducerId": AsksAnywhere(Operation.WRITE, ResourceType.TOPIC),
        # DELETE TOPIC
        "Broker/DeleteRecords": ENTRIES,
        # DESCRIBE CLUSTER for all of it, else DESCRIBE TOPIC
        "Broker/DescribeLogs": ENTRIES,
        "Broker/DescribeProducers": ENTRIES,
        "Broker/Replicate": NODES,
        "Broker/LogEnds": NODES,
        "Broker/Inventory": NODES,
        "Broker/Identify": NODES,
        "Broker/WriteTxnMarkers": on_cluster(Operation.ALTER, own=[Role.COORDINATOR]),
        "Broker/Mark": NODES,
        "Broker/Observed": on_cluster(Operation.DESCRIBE),
        "Auth/Authenticate": NOBODY,
        "Auth/DescribeSignOn": NOBODY,
        "Broker/WriteAudit": NODES,
        "Certificates/DescribeServed": on_cluster(Operation.DESCRIBE),
        # what the answer tells is whether the caller, or the owner of a ticket, may; a ticket is for what it may
        "Tickets/CheckAccess": ANYBODY,
        "Tickets/IssueTicket": ENTRIES,
    }
)
