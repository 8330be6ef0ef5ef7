"""
The calls of ``headrace.aio.Producer`` that send many records at once. The class for threads is made from this one, see
``tools/sync_faces.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from headrace._bulk import Slice, slices, table_columns
from headrace.delivery import Deliveries
from headrace.records import HeadersIn

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace._bulk_tables import ArrowTable
    from headrace._intake import Intake
    from headrace._record_rules import View

T = TypeVar("T")


class BulkCalls:
    """A part of ``headrace.aio.Producer``."""

    _intake: Intake

    async def _view(self, topic: str, at_least: int = 0) -> View:
        raise NotImplementedError

    async def _until_room(self, add: Callable[[], T | None], size: int) -> T:
        raise NotImplementedError

    async def send_many(
        self,
        topic: str,
        values: Sequence[Any] | pa.Array[Any],
        keys: Sequence[Any] | pa.Array[Any] | None = None,
        *,
        headers: Sequence[HeadersIn | None] | None = None,
        partition: int | Sequence[int] | None = None,
        timestamps_ms: int | Sequence[int] | None = None,
    ) -> Deliveries:
        """
        Accept many records of one topic, several times faster than ``send`` for each.

        Lists, tuples and arrays have one entry per record. All records are checked before the first is accepted;
        when the buffer stays full, those before are on their way and the error says how many.

        Raises:
            As ``send``.
        """
        self._intake.check_open()
        view = await self._view(topic)
        parts = slices(self._intake, view, values, keys, headers, partition, timestamps_ms)
        return await self._send_slices(view, parts)

    async def send_table(self, topic: str, table: ArrowTable) -> Deliveries:
        """
        Accept the rows of an Arrow table, or of what gives one by Arrow's C interface (pandas, polars, DuckDB): columns
        ``value``, and where present ``key``, ``partition``, ``timestamp_ms`` and ``headers`` (list of key and value),
        as ``poll_table`` of a consumer gives them. A null partition, as -1, leaves it to the key; null headers are
        none.

        Raises:
            As ``send``.
        """
        self._intake.check_open()
        view = await self._view(topic)
        return await self._send_slices(view, table_columns(self._intake, view, table))

    async def _send_slices(self, view: View, parts: Sequence[Slice]) -> Deliveries:
        intake = self._intake
        return Deliveries([await self._until_room(partial(part.add, intake, view), part.size) for part in parts])

    async def partitions_for(self, topic: str) -> int:
        """How many partitions the topic has."""
        return (await self._view(topic)).partitions
