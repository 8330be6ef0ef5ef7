"""Joins of two streams: what a program says, checked. Nothing runs here."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace_streams.core.errors import NotAllowed
from headrace_streams.core.operators.base import Operator
from headrace_streams.core.operators.stream_join import LATE_OF, StreamJoin, Within
from headrace_streams.core.operators.table_joins import RIGHT, Sides
from headrace_streams.dsl.columns import DROP, S
from headrace_streams.dsl.durations import Duration, to_ms
from headrace_streams.dsl.names import columns_text
from headrace_streams.dsl.table import STAYS, Joining, check_side, columns_of_both, joined, stays_of
from headrace_streams.dsl.where import where
from headrace_streams.plan.nodes import Input, Making


@dataclass(frozen=True, slots=True)
class Near:
    """Which rows of two streams make a pair, and what becomes of others; as ``Stream.join`` says it."""

    within: Duration | tuple[Duration, Duration] | None
    grace: Duration
    how: str
    suffix: str
    late: str
    name: str


def join_streams(left: S, right: S, near: Near, what: str) -> S:
    """
    Pairs of rows of two streams.

    Raises:
        NotAllowed: something is not said, or the streams cannot be joined.
    """
    within = _within(near, what)
    stays = stays_of(near.how, STAYS, what)
    for stream in (left, right):
        check_side(stream, what)
    columns, keys = columns_of_both(left, right, near.suffix, what)
    if not near.name:
        raise NotAllowed(f"{what} keeps state, which needs a name: say name=")
    if not near.late:
        raise NotAllowed(
            f"{what}: say what becomes of rows that come when event time is more than the grace beyond them: "
            "late=TOPIC keeps them, late='drop' drops and counts them"
        )
    sides, schemas = Sides(columns, keys, stays), (left.schema, right.schema)

    def make(making: Making) -> Operator:
        return StreamJoin(sides, schemas, within)

    kept = " and ".join(f"({columns_text(schema)})" for schema in schemas)
    settings = {"how": near.how, "within": str(within), "late": near.late, "columns": list(columns[RIGHT].values())}
    form = {"": f"rows of {kept}, {near.how}, in {within}"}
    result = joined(left, right, columns, make, Joining(where(), settings, near.name, form))
    if near.late != DROP:
        for stream, edge in zip((left, right), LATE_OF, strict=True):
            replace(stream, _input=Input(result._input.node, edge)).to(near.late)
    return replace(result, _keyed_by=left._keyed_by if keys or not stays[RIGHT] else None)


def _within(near: Near, what: str) -> Within:
    within = near.within
    if within is None:
        raise NotAllowed(f"{what}: say how far apart in time the rows of two streams may be, as within='10m'")
    if not isinstance(within, tuple):
        upper = to_ms(within, f"{what}: within")
        lower = -upper
    elif len(within) == 2:
        lower, upper = (to_ms(bound, f"{what}: within", least=None) for bound in within)
    else:
        raise NotAllowed(f"{what}: within is {within!r}; write a duration, or from when to when: ('-5m', '10m')")
    if lower > upper:
        raise NotAllowed(f"{what}: within is from {lower} ms to {upper} ms; the first must not be beyond the second")
    return Within(lower, upper, to_ms(near.grace, f"{what}: the grace"))
