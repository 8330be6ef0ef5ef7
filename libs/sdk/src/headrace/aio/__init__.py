"""``headrace`` for asyncio: the same names as in the sync package, with the same settings and guarantees."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from headrace._tokens import PreparedTransaction
    from headrace.aio.admin import AdminClient
    from headrace.aio.consumer import Consumer
    from headrace.aio.producer import Producer
    from headrace.aio.transactions import PreparedTransactions, UnitOwner
    from headrace.aio.work import WorkGroup
    from headrace.delivery import DeliveredBatch, Delivery
    from headrace.records import PartitionTable, Record, RecordMetadata, TimestampType, TopicPartition

_HOME: Final = {
    "AdminClient": "headrace.aio.admin",
    "Consumer": "headrace.aio.consumer",
    "DeliveredBatch": "headrace.delivery",
    "Delivery": "headrace.delivery",
    "PartitionTable": "headrace.records",
    "PreparedTransaction": "headrace.transactions",
    "PreparedTransactions": "headrace.aio.transactions",
    "Producer": "headrace.aio.producer",
    "Record": "headrace.records",
    "RecordMetadata": "headrace.records",
    "TimestampType": "headrace.records",
    "TopicPartition": "headrace.records",
    "UnitOwner": "headrace.aio.transactions",
    "WorkGroup": "headrace.aio.work",
}

__all__ = [
    "AdminClient",
    "Consumer",
    "DeliveredBatch",
    "Delivery",
    "PartitionTable",
    "PreparedTransaction",
    "PreparedTransactions",
    "Producer",
    "Record",
    "RecordMetadata",
    "TimestampType",
    "TopicPartition",
    "UnitOwner",
    "WorkGroup",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'headrace.aio' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
