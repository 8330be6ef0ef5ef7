"""
Which event a call that was carried out becomes: one table for all services, as ``node_rules`` has who may call.

The process that carries a call out writes it, in the name of the caller whose credential came with it. So what an admin
node passes on is not written by the admin node. That a call was refused, or its credential, is written for every
operation. ``test_operations.py`` compares the table with the descriptors: a new operation needs its row.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from headrace_common.core.audit.kinds import Kind

NOTHING: Final = None

WRITTEN_OF: Final[Mapping[str, Kind | None]] = MappingProxyType(
    {
        "Broker/Produce": Kind.RECORDS_WRITTEN,  # of topics that are set so
        "Broker/Fetch": Kind.RECORDS_READ,  # the same
        "Broker/ListOffsets": NOTHING,
        "Broker/Metadata": NOTHING,
        "Broker/InitProducerId": NOTHING,
        "Broker/FindCoordinator": NOTHING,
        "Broker/DeleteRecords": Kind.ADMINISTERED,
        "Broker/DescribeLogs": NOTHING,
        "Broker/DescribeProducers": NOTHING,
        "Broker/Replicate": NOTHING,
        "Broker/LogEnds": NOTHING,
        "Broker/Inventory": NOTHING,
        "Broker/Identify": NOTHING,
        "Broker/WriteTxnMarkers": Kind.ADMINISTERED,  # for a caller; a coordinator's end a transaction of its own
        "Broker/Mark": NOTHING,
        "Broker/Observed": NOTHING,
        "Broker/WriteAudit": NOTHING,  # it is the audit
        "Tickets/CheckAccess": NOTHING,
        "Tickets/IssueTicket": NOTHING,
        "Controller/RegisterNode": Kind.NODE_REGISTERED,
        "Controller/Heartbeat": NOTHING,
        "Controller/UnregisterNode": Kind.ADMINISTERED,  # by others than the node itself
        "Controller/WatchMetadata": NOTHING,
        "Controller/DescribeCluster": NOTHING,
        "Controller/CreateTopics": Kind.ADMINISTERED,
        "Controller/DeleteTopics": Kind.ADMINISTERED,
        "Controller/ListTopics": NOTHING,
        "Controller/DescribeTopics": NOTHING,
        "Controller/CreatePartitions": Kind.ADMINISTERED,
        "Controller/DescribeConfigs": NOTHING,
        "Controller/IncrementalAlterConfigs": Kind.ADMINISTERED,
        "Controller/AllocateProducerIds": NOTHING,
        "Controller/ConfirmDeletions": NOTHING,
        "Controller/AlterPartitions": NOTHING,
        "Controller/ElectLeaders": Kind.ADMINISTERED,
        "Controller/AlterReassignments": Kind.ADMINISTERED,
        "Controller/ListReassignments": NOTHING,
        "Controller/DrainBroker": Kind.ADMINISTERED,
        "Controller/EnsureInternalTopic": NOTHING,
        "Controller/DescribeRestore": NOTHING,
        "Controller/AdoptTopic": Kind.ADMINISTERED,
        "Controller/AlterAccess": Kind.ACCESS_CHANGED,
        "Controller/CreateKey": Kind.ACCESS_CHANGED,
        "Controller/DeleteKeys": Kind.ACCESS_CHANGED,
        "Controller/AlterQuotas": Kind.ACCESS_CHANGED,
        "Controller/Observed": NOTHING,
        "Controller/CreateUser": Kind.ACCESS_CHANGED,
        "Controller/ChangePassword": Kind.ACCESS_CHANGED,
        "Controller/DeleteUser": Kind.ACCESS_CHANGED,
        "Controller/Login": Kind.SESSION_BEGUN,
        "Coordinator/Membership": NOTHING,
        "Coordinator/CommitOffsets": NOTHING,
        "Coordinator/TxnOffsetCommit": NOTHING,
        "Coordinator/FetchOffsets": NOTHING,
        "Coordinator/WriteTxnMarkers": NOTHING,
        "Coordinator/Mark": NOTHING,
        "Coordinator/ListGroups": NOTHING,
        "Coordinator/DescribeGroups": NOTHING,
        "Coordinator/DeleteGroups": Kind.ADMINISTERED,
        "Coordinator/DeleteOffsets": Kind.ADMINISTERED,
        "Coordinator/IdentifyCoordinator": NOTHING,
        "Coordinator/Observed": NOTHING,
        "TransactionCoordinator/InitTransactionalId": NOTHING,
        "TransactionCoordinator/AddPartitionsToTxn": NOTHING,
        "TransactionCoordinator/Enrol": NOTHING,
        "TransactionCoordinator/EndTxn": NOTHING,
        "TransactionCoordinator/End": NOTHING,
        "TransactionCoordinator/PrepareTxn": NOTHING,
        "TransactionCoordinator/DecidePrepared": NOTHING,
        "TransactionCoordinator/InitOwner": NOTHING,
        "TransactionCoordinator/CommitUnit": NOTHING,
        "TransactionCoordinator/ListTransactions": NOTHING,
        "TransactionCoordinator/DescribeTransactions": NOTHING,
        "TransactionCoordinator/AbortTransaction": Kind.ADMINISTERED,
        "Admin/DescribeCluster": NOTHING,
        "Admin/CreateTopics": NOTHING,
        "Admin/DeleteTopics": NOTHING,
        "Admin/ListTopics": NOTHING,
        "Admin/DescribeTopics": NOTHING,
        "Admin/CreatePartitions": NOTHING,
        "Admin/DescribeConfigs": NOTHING,
        "Admin/IncrementalAlterConfigs": NOTHING,
        "Admin/DeleteRecords": NOTHING,
        "Admin/DescribeLogs": NOTHING,
        "Admin/UnregisterNode": NOTHING,
        "Admin/ElectLeaders": NOTHING,
        "Admin/AlterReassignments": NOTHING,
        "Admin/ListReassignments": NOTHING,
        "Admin/DrainBroker": NOTHING,
        "Admin/DescribeRestore": NOTHING,
        "Admin/DescribeFeatures": NOTHING,
        "Admin/AdoptTopic": NOTHING,
        "Admin/DescribeStatus": NOTHING,
        "Admin/DescribeReassignments": NOTHING,
        "Admin/RebalanceCluster": NOTHING,
        "Admin/DecommissionBroker": NOTHING,
        "Admin/ListGroups": NOTHING,
        "Admin/DescribeGroups": NOTHING,
        "Admin/DescribeGroupLag": NOTHING,
        "Admin/ResetOffsets": Kind.ADMINISTERED,  # the coordinator sees a commit like any other
        "Admin/DeleteGroups": NOTHING,
        "Admin/DeleteOffsets": NOTHING,
        "Admin/ListTransactions": NOTHING,
        "Admin/DescribeTransactions": NOTHING,
        "Admin/ListPreparedTransactions": NOTHING,
        "Admin/ListOpenTransactions": NOTHING,
        "Admin/DecidePrepared": Kind.ADMINISTERED,  # the coordinator sees what writers decide of their own all day
        "Admin/AbortTransaction": NOTHING,
        "Admin/AbortHangingTransaction": NOTHING,
        "Admin/AlterAccess": NOTHING,
        "Admin/DescribeAccess": NOTHING,
        "Admin/ExplainAccess": NOTHING,
        "Admin/WhoCan": NOTHING,
        "Admin/Observed": NOTHING,
        "Admin/CreateKey": NOTHING,
        "Admin/ListKeys": NOTHING,
        "Admin/DeleteKeys": NOTHING,
        "Admin/AlterQuotas": NOTHING,
        "Admin/DescribeQuotas": NOTHING,
        "Admin/WhoAmI": NOTHING,
        "Admin/CreateUser": NOTHING,
        "Admin/ChangePassword": NOTHING,
        "Admin/DeleteUser": NOTHING,
        "Admin/ListUsers": NOTHING,
        "Admin/Login": NOTHING,
        "Auth/Authenticate": Kind.SESSION_BEGUN,
        "Auth/DescribeSignOn": NOTHING,
        "StreamsQuery/DescribeStores": NOTHING,
        "StreamsQuery/LocateKey": NOTHING,
        "StreamsQuery/QueryStore": NOTHING,
    }
)
"""By ``SERVICE/OPERATION``; of ``NOTHING`` no event is made."""
