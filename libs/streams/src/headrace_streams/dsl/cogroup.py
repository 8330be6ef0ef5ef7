"""Aggregates of several streams with the same key, side by side in one result. A plan is built; nothing runs here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Generic

import pyarrow as pa

from headrace_streams.core.errors import NotAllowed
from headrace_streams.dsl.agg import Agg
from headrace_streams.dsl.columns import Grouped, S, Window
from headrace_streams.dsl.where import where
from headrace_streams.dsl.windows import AtMostEvery


@dataclass(frozen=True, slots=True)
class Cogrouped(Generic[S]):
    """Groups of several streams, and what is computed of each."""

    _groups: Grouped[S]
    """Of the rows of all of them: the key, and a column for each aggregate, null in rows of the other streams."""
    _aggregates: Mapping[str, Agg]

    def window(self, window: Window, *, late: str = "") -> Cogrouped[S]:
        """As for groups of one stream; a late row has the key, and what it would have brought to each aggregate."""
        return replace(self, _groups=self._groups.window(window, late=late))

    def agg(self, *, name: str = "", emit: str | AtMostEvery = "changes") -> S:
        """As for groups of one stream: a row of any of them changes the result."""
        return self._groups.agg(name=name, emit=emit, **self._aggregates)


def cogroup(**aggregates: tuple[Grouped[S], Agg]) -> Cogrouped[S]:
    """
    One result for the groups of several streams: ``cogroup(spent=(orders, agg.sum("amount")), clicks=(clicks,
    agg.count()))``, where ``orders`` and ``clicks`` are each a ``group_by`` of the same columns. An aggregate takes the
    rows of its own stream only: for a key without any it is null, or 0.
    """
    what = f"cogroup ({where()})"
    if not aggregates:
        raise NotAllowed(f"{what}: say what to compute, for example n=(orders.group_by('user'), agg.count())")
    groups: list[Grouped[S]] = []
    for out, pair in aggregates.items():
        match pair:
            case (Grouped() as of, Agg()):
                _check(out, of, [*groups, of][0], what)
                groups += [] if any(of is other for other in groups) else [of]
            case _:
                raise NotAllowed(f"{what}: {out} is {pair!r:.60}; write for example {out}=(GROUPS, agg.count())")
    inputs = [of._inputs({out: one for out, (own, one) in aggregates.items() if own is of}, what) for of in groups]
    fields = {field.name: field.with_nullable(True) for one in inputs for field in one.schema}
    schema = pa.schema(list(fields.values()))
    both = inputs[0]._padded(inputs[1:], schema)
    taken = {out: replace(one, column=out) for out, (_, one) in aggregates.items()}
    return Cogrouped(Grouped(both, groups[0]._columns, "", _combine=False), taken)


def _check(out: str, of: Grouped[S], first: Grouped[S], what: str) -> None:
    """
    Raises:
        NotAllowed: these groups cannot stand beside the first ones.
    """
    if of._table:
        raise NotAllowed(f"{what}: {out} is of a table; say to_stream() before group_by()")
    if of._window is not None:
        raise NotAllowed(f"{what}: the groups of {out} have a window; say cogroup(…).window(…) instead")
    if out in of._columns:
        raise NotAllowed(f"{what}: a result cannot be called {out!r}, which is a column of the key")
    if of._stream._plan is not first._stream._plan:
        raise NotAllowed(f"{what}: the streams belong to different apps")
    keys, wanted = ({name: str(one._stream.schema.field(name).type) for name in one._columns} for one in (of, first))
    if list(keys.items()) != list(wanted.items()):
        raise NotAllowed(
            f"{what}: {out} is grouped by {keys or 'the key'}, and the first one by {wanted or 'the key'}; group "
            "all of them by columns of the same names, types and order"
        )
