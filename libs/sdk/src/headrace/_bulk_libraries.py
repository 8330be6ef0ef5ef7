"""
Loads what reading in bulk needs before an event loop needs it: the first import of pyarrow takes longer than a loop may
stand still. Called in a thread by the consumer's engine, when the first large batch came, and by ``poll_table``.
Producers of lists load none of it.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Final

from headrace_common.core.arrow import has_arrow, need_arrow

RECORD_COUNT: Final = slice(57, 61)
"""Where a batch's header says how many records it has."""

BULK_RECORDS: Final = 16
"""Batches of fewer records are decoded without these libraries."""


def is_bulk(batch: bytes) -> bool:
    """Whether decoding needs them; what is no batch is told elsewhere."""
    return int.from_bytes(batch[RECORD_COUNT], "big") >= BULK_RECORDS


def load_bulk_libraries() -> None:
    """numpy and, where it is installed, pyarrow: what makes lists of many records."""
    for module in ("numpy", "headrace_common.core.batch.rows"):
        importlib.import_module(module)
    if has_arrow():
        importlib.import_module("pyarrow.compute")


@cache
def load_table_libraries() -> None:
    """
    What makes tables, once: with pyarrow also pandas, which that looks for, and loads where it is installed.

    Raises:
        Rejected: pyarrow is not installed.
    """
    need_arrow("a table of records")
    import pyarrow as pa

    from headrace_common.core.batch.arrow_schema import no_headers

    pa.array([b""], pa.binary())
    no_headers(0)
