"""Streams, as programs write them: rows that pass, alone and joined with others."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_streams.core.errors import NotAllowed
from headrace_streams.dsl.columns import Columns
from headrace_streams.dsl.durations import Duration
from headrace_streams.dsl.global_table import GlobalTable, join_global
from headrace_streams.dsl.stream_join import Near, join_streams
from headrace_streams.dsl.table import Table, join_table, table_of
from headrace_streams.dsl.where import where


@dataclass(frozen=True, slots=True)
class Stream(Columns):
    """Rows that pass: each method gives another stream, and leaves this one as it is."""

    def join(
        self,
        other: Table[Stream] | GlobalTable | Stream,
        *,
        on: str = "",
        how: str = "inner",
        suffix: str = "",
        within: Duration | tuple[Duration, Duration] | None = None,
        grace: Duration = 0,
        late: str = "",
        name: str = "",
    ) -> Stream:
        """
        The rows with those of a table that have the same key, side by side, as the table is when a row comes; or, with
        ``within``, pairs of a row here and one of another stream that have the same key and are near each other in
        time. A pair has the greater time of the two.

        Args:
            on: the column here that has the key of a global table; its key if not told.
            how: ``"inner"``: rows that find one; ``"left"``: all rows; ``"outer"``: all rows of both streams. Those of
                streams that have found none are told once event time is so far that they cannot find one any more.
            suffix: of columns of the other side whose names this stream has too.
            within: how far apart the rows of two streams may be, as ``"10m"``; or from when to when, seen from the row
                here: ``("-5m", "10m")`` takes rows from 5 minutes before it to 10 minutes after.
            grace: how far a row of two streams may be behind the watermark.
            late: the topic that gets rows which are further behind, or ``"drop"``.
            name: of the state of two streams: rows that may still find others.
        """
        what = f"join {name!r} ({where()})" if name else f"join ({where()})"
        if on and not isinstance(other, GlobalTable):
            raise NotAllowed(
                f"{what}: on= is for global tables; others have their rows where the keys are: key_by() one"
            )
        if isinstance(other, Stream):
            return join_streams(self, other, Near(within, grace, how, suffix, late, name), what)
        if not isinstance(other, Table | GlobalTable):
            raise NotAllowed(f"{what}: a stream is joined with a table or another stream; this is {other!r:.60}")
        if within is not None or grace or late or name:
            raise NotAllowed(f"{what}: within=, grace=, late= and name= are for joins of two streams; leave them out")
        if isinstance(other, GlobalTable):
            return join_global(self, other, on, how, suffix)
        return join_table(self, other, how, suffix)

    def to_table(self, *, name: str, versions: Duration | None = None) -> Table[Stream]:
        """
        The latest row of each key.

        Args:
            name: of the state.
            versions: as for ``App.table``.
        """
        return table_of(self, name, f"to_table ({where()})", versions)
