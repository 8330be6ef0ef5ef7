"""
Loads what bulk work needs before an event loop needs it: the first import of pyarrow takes longer than a loop may
stand still. Called in a thread, by the engines: the consumer's when the first large batch came.
"""

from __future__ import annotations

import importlib
from typing import Final

from headrace_common.core.arrow import has_arrow

RECORD_COUNT: Final = slice(57, 61)
"""Where a batch's header says how many records it has."""

BULK_RECORDS: Final = 16
"""Batches of fewer records are decoded without these libraries."""


def is_bulk(batch: bytes) -> bool:
    """Whether decoding needs them; what is no batch is told elsewhere."""
    return int.from_bytes(batch[RECORD_COUNT], "big") >= BULK_RECORDS


def load_bulk_libraries() -> None:
    """numpy and, where it is installed, pyarrow, with what that loads when it is first used."""
    for module in ("numpy", "headrace_common.core.batch.rows"):
        importlib.import_module(module)
    if not has_arrow():
        return
    importlib.import_module("pyarrow.compute")
    import pyarrow as pa

    pa.array([b""], pa.binary())  # looks for pandas, and loads it where it is installed
