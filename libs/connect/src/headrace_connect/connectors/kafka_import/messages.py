"""Messages of Kafka's client as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace_common.core.batch.arrow_schema import headers_type
from headrace_connect.connectors.copying.port import Fetched


def to_fetched(messages: Sequence[Any], end: int | None) -> Fetched:
    """
    Args:
        messages: of one partition, in their order.
        end: the position, where there is nothing behind them for now; None: there is. One of both must be.
    """
    return Fetched(
        np.array([one.offset() for one in messages], np.int64),
        pa.array([one.key() for one in messages], pa.binary()),
        pa.array([one.value() for one in messages], pa.binary()),
        pa.array([_timestamp_ms(one) for one in messages], pa.int64()),
        _headers([one.headers() for one in messages]),
        messages[-1].offset() + 1 if end is None else end,
        end is not None,
    )


def _headers(given: Sequence[Sequence[tuple[str, bytes | None]] | None]) -> pa.Array[Any]:
    pairs: list[Any]
    if any(given):
        pairs = [[{"key": name, "value": value} for name, value in one or ()] for one in given]
    else:
        pairs = [[]] * len(given)
    return pa.array(pairs, headers_type())


def _timestamp_ms(message: Any) -> int | None:
    kind, timestamp_ms = message.timestamp()
    return timestamp_ms if kind else None
