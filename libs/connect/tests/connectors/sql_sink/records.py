"""Records as the runtime hands them to a sink."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.records import TopicPartition
from headrace_connect.plugin import Rows

TOPIC = "shop.orders"
P0, P1 = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)


def rows(
    values: Sequence[Any] | pa.Array[Any],
    keys: Sequence[Any] | pa.Array[Any] | None = None,
    start: int = 0,
    partition: TopicPartition = P0,
) -> Rows:
    """Records with offsets from ``start`` on."""
    made = values if isinstance(values, pa.Array) else pa.array(values)
    count = len(made)
    made_keys = keys if isinstance(keys, pa.Array) else pa.array(keys if keys is not None else [None] * count)
    headers = pa.array([[]] * count, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    offsets = pa.array(range(start, start + count), pa.int64())
    return Rows(partition.topic, partition.partition, made, made_keys, offsets, pa.array([0] * count), headers)
