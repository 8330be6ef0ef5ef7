"""Reads one table or query, page by page."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from headrace_connect.connectors.sql_source.database import ManyRows, Page, SourceDatabase
from headrace_connect.connectors.sql_source.holding import Holding
from headrace_connect.connectors.sql_source.position import Place
from headrace_connect.connectors.sql_source.statements import Order, Selection, Subject
from headrace_connect.core.drift import Columns, SourceDrift
from headrace_connect.core.events import Notify
from headrace_connect.plugin import Chunk

_log: Final = logging.getLogger(__name__)
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.005, 0.1
"""Between two looks at what rows are held back by; others that share the thread wait meanwhile."""
_PATIENCE_MS: Final = 10_000
"""Rows that are held back for longer do not keep the source from being drained."""
_TELL_MS: Final = 30_000
"""Rows that are held back for so long are logged, again after each such time."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read, and how."""

    database: SourceDatabase
    subject: Subject
    order: Order
    by_time: bool
    """The first column of the order is a time."""
    topic: str
    rows_max: int
    monotonic_s: Callable[[], float]
    sleep_s: Callable[[float], None]
    drift: SourceDrift = SourceDrift.ADD
    notify: Notify = lambda event: None

    def columns(self, place: Place) -> Columns:
        """What notices that columns change, behind a place."""
        return Columns(self.subject.name, self.drift, self.notify, place.columns)

    def types(self, page: Page) -> Mapping[str, str]:
        """The columns of rows, with what is known of their types."""
        fields: pa.StructType = page.rows.type
        return {field.name: str(field.type) if self.database.has_column_types else "" for field in fields}

    def select(self, place: Place) -> Selection:
        """What is behind a place."""
        return Selection(self.subject, self.order, place.at)

    def chunk(self, page: Page | None, place: Place, *, drained: bool = False) -> Chunk:
        """Rows, and the place behind them."""
        position = place.to_json(self.order.names)
        if page is None:
            return Chunk([], position, self.topic, drained=drained)
        return Chunk(page.rows, position, self.topic, bad=page.bad, drained=drained)


def read_new(reading: Reading, place: Place) -> Iterator[Chunk]:
    """Rows that are new or changed, for good."""
    reader = _NewRows(reading, place)
    while True:
        yield reader.step()


def read_all(reading: Reading, place: Place) -> Iterator[Chunk]:
    """
    All rows again and again, by primary key: it goes on behind any row. Rows that come while they are read may be read
    in this pass, or in the next one.
    """
    columns = reading.columns(place)
    while True:
        if place.at is None:
            place = replace(place, passes=place.passes + 1)
        page = reading.database.read(replace(reading.select(place), limit=reading.rows_max))
        columns.see(reading.types(page))
        whole = not page.cut and page.count < reading.rows_max
        place = replace(place, at=None if whole else page.last, columns=columns.digest)
        yield reading.chunk(page, place, drained=whole)


def read_whole(reading: Reading, place: Place) -> Iterator[Chunk]:
    """All rows again and again, each time as they are at one moment; a pass that is not finished begins again."""
    columns = reading.columns(place)
    while True:
        done, place = place, replace(place, passes=place.passes + 1)
        reading.database.connect()
        pages = reading.database.stream(reading.select(place), reading.rows_max)
        page: Page | None = next(pages)
        while page is not None:
            columns.see(reading.types(page))
            done, place = (replace(one, columns=columns.digest) for one in (done, place))
            following = next(pages, None)
            # Only the last chunk of a pass says that it is done.
            yield reading.chunk(page, place if following is None else done, drained=following is None)
            page = following
        reading.database.close()


class _NewRows:
    """Steps of ``read_new``."""

    def __init__(self, reading: Reading, place: Place) -> None:
        self._reading = reading
        self._place = place
        self._holding = Holding()
        self._columns = reading.columns(place)
        self._told_ms = 0.0

    def step(self) -> Chunk:
        """Rows, or none if there are none to be read."""
        reading, holding = self._reading, self._holding
        if holding.is_waiting:
            waited_ms = holding.waited_ms(self._now_ms())
            if waited_ms < _PATIENCE_MS:
                reading.sleep_s(min(_PAUSE_S_MAX, max(_PAUSE_S_MIN, waited_ms / 10_000)))
            holding.look(self._running(), self._now_ms())
        elif holding.complete is None:
            bound = reading.database.find_bound(reading.select(self._place), reading.by_time)
            if bound is None:
                return reading.chunk(None, self._place, drained=True)
            holding.find(bound, self._running(), self._now_ms())
        if holding.complete is None:
            return reading.chunk(None, self._place, drained=self._tell())
        self._told_ms = 0.0
        page, more = self._read(replace(reading.select(self._place), upto=holding.complete.value))
        if not more:
            holding.read()
        if not page.count:
            return reading.chunk(None, self._place)
        self._columns.see(reading.types(page))
        self._place = replace(self._place, at=page.last, columns=self._columns.digest)
        return reading.chunk(page, self._place)

    def _read(self, selection: Selection) -> tuple[Page, bool]:
        """
        A page, and whether there is more up to the bound.

        Raises:
            ManyRows: see there.
        """
        database, limit = self._reading.database, self._reading.rows_max
        if self._reading.order.unique:
            page = database.read(replace(selection, limit=limit))
            return page, page.cut or page.count == limit
        while True:  # rows with equal values belong together, or the position would be within them
            end = database.nth(selection, limit - 1)
            page = database.read(selection if end is None else replace(selection, upto=end))
            if not page.cut:
                return page, end is not None
            if limit == 1:
                name = self._reading.order.names[0]
                raise ManyRows(
                    f"{self._reading.subject.name} has more rows with one value of {name} than can be read at once; a "
                    "primary key tells them apart, or mode=timestamp+incrementing"
                )
            limit = max(1, limit // 4)

    def _running(self) -> frozenset[str]:
        return self._reading.database.find_running(self._reading.subject, self._reading.by_time)

    def _now_ms(self) -> float:
        return self._reading.monotonic_s() * 1_000

    def _tell(self) -> bool:
        """Log what rows wait for, if that lasts; whether nobody has to wait for them any more."""
        waited_ms = self._holding.waited_ms(self._now_ms())
        if waited_ms - self._told_ms >= _TELL_MS and self._holding.waits_for:
            self._told_ms = waited_ms
            _log.warning(
                "%s: rows are held back for %d s by transactions that are open: %s (virtualtransaction of pg_locks); "
                "hold.back=delay reads on without them, and may leave out what they commit",
                self._reading.subject.name,
                waited_ms // 1_000,
                ", ".join(sorted(self._holding.waits_for)[:10]),
            )
        return waited_ms >= _PATIENCE_MS
