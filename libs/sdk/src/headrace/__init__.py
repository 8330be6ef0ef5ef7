"""
Headrace for Python: ``Producer``, ``Consumer`` and ``AdminClient``; ``headrace.aio`` has the same for asyncio.

Names are loaded when they are first used, so that ``import headrace`` is quick.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any, Final

from headrace._descriptors import needing_descriptors

if TYPE_CHECKING:
    from headrace import aio, errors, serializers
    from headrace._core.fetch_events import LogDiverged, PositionReset, TopicRecreated
    from headrace.admin import AdminClient, NewTopic
    from headrace.consumer import Consumer
    from headrace.delivery import DeliveredBatch, Delivery
    from headrace.errors import HeadraceError
    from headrace.log_watch import LogBounds, LogWatch, TopicLayout
    from headrace.producer import Producer
    from headrace.range_reader import RangeReader
    from headrace.records import (
        Committed,
        PartitionTable,
        Record,
        RecordMetadata,
        SkippedBatch,
        TimestampType,
        TopicPartition,
    )
    from headrace.serializers import bulk_partitioner
    from headrace.transactions import PreparedTransaction, PreparedTransactions, UnitOwner
    from headrace.work import WorkGroup
    from headrace.work_types import WorkChange, WorkItem, declare

# gRPC's own fork handlers crash children of a process whose connections are in use; before gRPC is loaded.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

__version__: Final = "0.1.0"

_HOME: Final = {
    "AdminClient": "headrace.admin",
    "Committed": "headrace.records",
    "Consumer": "headrace.consumer",
    "DeliveredBatch": "headrace.delivery",
    "Delivery": "headrace.delivery",
    "HeadraceError": "headrace.errors",
    "LogBounds": "headrace.log_watch",
    "LogDiverged": "headrace._core.fetch_events",
    "LogWatch": "headrace.log_watch",
    "NewTopic": "headrace.admin",
    "PartitionTable": "headrace.records",
    "PositionReset": "headrace._core.fetch_events",
    "PreparedTransaction": "headrace.transactions",
    "PreparedTransactions": "headrace.transactions",
    "Producer": "headrace.producer",
    "RangeReader": "headrace.range_reader",
    "Record": "headrace.records",
    "RecordMetadata": "headrace.records",
    "SkippedBatch": "headrace.records",
    "TimestampType": "headrace.records",
    "TopicLayout": "headrace.log_watch",
    "TopicPartition": "headrace.records",
    "TopicRecreated": "headrace._core.fetch_events",
    "UnitOwner": "headrace.transactions",
    "WorkChange": "headrace.work_types",
    "WorkGroup": "headrace.work",
    "WorkItem": "headrace.work_types",
    "bulk_partitioner": "headrace.serializers",
    "declare": "headrace.work_types",
}
_MODULES: Final = frozenset({"aio", "errors", "serializers"})

__all__ = [
    "AdminClient",
    "Committed",
    "Consumer",
    "DeliveredBatch",
    "Delivery",
    "HeadraceError",
    "LogBounds",
    "LogDiverged",
    "LogWatch",
    "NewTopic",
    "PartitionTable",
    "PositionReset",
    "PreparedTransaction",
    "PreparedTransactions",
    "Producer",
    "RangeReader",
    "Record",
    "RecordMetadata",
    "SkippedBatch",
    "TimestampType",
    "TopicLayout",
    "TopicPartition",
    "TopicRecreated",
    "UnitOwner",
    "WorkChange",
    "WorkGroup",
    "WorkItem",
    "__version__",
    "aio",
    "bulk_partitioner",
    "declare",
    "errors",
    "serializers",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        with needing_descriptors():
            return importlib.import_module(f"headrace.{name}")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    with needing_descriptors():
        value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
