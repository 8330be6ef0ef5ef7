"""
Finds and adds contexts of traces in the headers of records, a column at a time. A record carries its trace in one
header, ``traceparent``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace_common.runtime.traceparent import HEADER, TraceParent, to_header

Headers = Any
"""An array of lists of ``{"key": text, "value": bytes}``; null: the record has none."""
Mask = np.ndarray[Any, np.dtype[np.bool_]]


def find_parents(headers: Headers, count_max: int) -> tuple[list[TraceParent], bool]:
    """
    The different contexts that records carry, in their order and at most so many; whether each record has the header.
    """
    flat: Any = headers.flatten()
    named = _named(flat)
    whole = bool(_carriers(headers, named).all())
    if not named.any():
        return [], whole
    found: list[TraceParent] = []
    for value in flat.field("value").filter(pa.array(named)).unique():
        parent = TraceParent.parse((value.as_py() or b"").decode("ascii", "replace"))
        if parent is not None and parent not in found:
            found.append(parent)
        if len(found) == count_max:
            break
    return found, whole


def add_parent(headers: Headers, parent: TraceParent) -> Headers:
    """The same, with the header behind those of each record that does not have it."""
    flat: Any = headers.flatten()
    lacks = ~_carriers(headers, _named(flat))
    if not lacks.any():
        return headers
    ends = np.cumsum(_lengths(headers) + lacks)
    added = np.zeros(ends[-1], np.bool_)
    added[ends[lacks] - 1] = True
    indices = np.full(ends[-1], len(flat), np.int64)
    indices[~added] = np.arange(len(flat))
    name, value = to_header(parent)
    pairs = pa.concat_arrays([flat, pa.array([{"key": name, "value": value}], flat.type)]).take(pa.array(indices))
    offsets: Any = pa.array(np.concatenate([[0], ends]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, pairs, type=headers.type)


def _named(flat: Any) -> Mask:
    """Which headers carry a context."""
    keys: Any = pc.equal(flat.field("key"), pa.scalar(HEADER))
    return np.asarray(keys.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)


def _carriers(headers: Headers, named: Mask) -> Mask:
    """Which records have one of these headers."""
    found = np.zeros(len(headers), np.bool_)
    found[np.repeat(np.arange(len(headers)), _lengths(headers))[named]] = True
    return found


def _lengths(headers: Headers) -> np.ndarray[Any, np.dtype[np.int64]]:
    lengths: Any = pc.list_value_length(headers)
    lengths = lengths.fill_null(0)
    return np.asarray(lengths.to_numpy(), np.int64)
