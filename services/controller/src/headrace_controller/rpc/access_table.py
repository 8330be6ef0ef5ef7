"""
What each operation of a controller asks of its caller. ``test_access_table.py`` compares it with the descriptors.

Admin nodes ask for others and pass their credential on, so who decides is whoever the caller is. What nodes ask for
themselves is ``node_rules``.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from headrace_common.core.access.resources import Operation
from headrace_common.rpc.access_rules import ENTRIES, NODES, AccessTable, on_cluster

_DESCRIBE: Final = on_cluster(Operation.DESCRIBE)
_ALTER: Final = on_cluster(Operation.ALTER)

ACCESS: Final[AccessTable] = MappingProxyType(
    {
        "Controller/RegisterNode": NODES,
        "Controller/Heartbeat": NODES,
        "Controller/UnregisterNode": ENTRIES,  # nothing of the node itself; else ALTER CLUSTER
        "Controller/WatchMetadata": NODES,
        "Controller/DescribeCluster": _DESCRIBE,
        "Controller/CreateTopics": ENTRIES,
        "Controller/DeleteTopics": ENTRIES,
        "Controller/ListTopics": ENTRIES,
        "Controller/DescribeTopics": ENTRIES,
        "Controller/CreatePartitions": ENTRIES,
        "Controller/DescribeConfigs": ENTRIES,
        "Controller/IncrementalAlterConfigs": ENTRIES,
        "Controller/AllocateProducerIds": NODES,
        "Controller/ConfirmDeletions": NODES,
        "Controller/AlterPartitions": NODES,
        "Controller/ElectLeaders": _ALTER,
        "Controller/AlterReassignments": _ALTER,
        "Controller/ListReassignments": _DESCRIBE,
        "Controller/DrainBroker": _ALTER,
        "Controller/EnsureInternalTopic": NODES,
        "Controller/DescribeRestore": _DESCRIBE,
        "Controller/AdoptTopic": _ALTER,
        "Controller/AlterAccess": ENTRIES,  # ALTER PRINCIPAL of whom each change is about
        "Controller/CreateKey": ENTRIES,  # CREATE_TOKENS on oneself, ALTER PRINCIPAL for keys of others
        "Controller/DeleteKeys": ENTRIES,
        "Controller/AlterQuotas": on_cluster(Operation.ALTER_CONFIGS),
        "Controller/Observed": _DESCRIBE,
        "Controller/CreateUser": ENTRIES,  # as for keys of others
        "Controller/ChangePassword": ENTRIES,
        "Controller/DeleteUser": ENTRIES,  # ALTER PRINCIPAL of that user
        "Controller/Login": NODES,  # of admin, for who has no credential yet
        "Certificates/DescribeServed": _DESCRIBE,
    }
)
