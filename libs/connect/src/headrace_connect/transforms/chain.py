"""Transforms one behind the other, each for the records that its predicate chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headrace_connect.core.batch import KEY, NAME, OPEN, VALUE, VERSION, Batch, Failure
from headrace_connect.core.halving import apart
from headrace_connect.core.kinds import Apart, fitted, merged
from headrace_connect.transforms.port import Predicate, Transform

arrow: Any = pa  # its stubs are narrower than it is


@dataclass(frozen=True, slots=True)
class Step:
    """One transform of a connector."""

    name: str
    """As the configuration calls it."""
    transform: Transform
    predicate: Predicate | None = None
    negate: bool = False
    """Whether it is for the records that the predicate does not choose."""


@dataclass(frozen=True, slots=True, eq=False)
class Transformed:
    """What became of a batch."""

    batches: list[Batch]
    """In the order of the rows. Several only where one type cannot hold all keys or values."""
    failures: list[Failure] = field(default_factory=list)
    """By place."""


@dataclass(frozen=True, slots=True)
class Chain:
    """The transforms of a connector, in order. Holds nothing between batches: a row becomes the same in any batch."""

    steps: Sequence[Step]

    def apply(self, batch: Batch) -> Transformed:
        """
        A row that fails in a transform is left out, and told; the others are not affected.

        Rows are joined behind the last step only: whether a row has a field does not depend on the rows around it.
        """
        groups = [batch]
        failures: list[Failure] = []
        for step in self.steps:
            parts: list[Batch] = []
            for one in groups:
                done, failed = _apply(step, one)
                parts += done
                failures += failed
            groups = _grouped(parts)
        return Transformed(joined(groups), sorted(failures, key=lambda failure: failure.place))


def _apply(step: Step, batch: Batch) -> tuple[list[Batch], list[Failure]]:
    rest: list[Batch] = []
    if step.predicate is not None:
        chosen = np.asarray(step.predicate.holds(batch), bool) ^ step.negate
        if not chosen.all():
            rest = [batch.filter(~chosen)]
            batch = batch.filter(chosen)
    if not len(batch) and rest:
        return rest, []
    results, failed = apart(batch, step.transform.apply)
    places = batch.places
    failures = [Failure(int(places[row]), f"{step.name}: {why}") for row, why in failed.items()]
    return [*(part for _, part in results), *rest], failures


def _grouped(parts: Sequence[Batch]) -> list[Batch]:
    """Batches with the same columns as one; their order does not matter."""
    groups: list[list[Batch]] = []
    for part in [part for part in parts if len(part)] or list(parts[:1]):
        schema = part.records.schema
        alike = next((group for group in groups if group[0].records.schema.equals(schema, check_metadata=True)), None)
        if alike is None:
            groups.append([part])
        else:
            alike.append(part)
    return [
        group[0] if len(group) == 1 else Batch(arrow.concat_batches([part.records for part in group]))
        for group in groups
    ]


def joined(parts: Sequence[Batch]) -> list[Batch]:
    """
    Batches as one, by place: fields that only some have are null in the others.

    Where a key or value is of two types that nothing holds both of, as many batches as keep the order of the rows.
    """
    given = [part for part in parts if len(part)] or list(parts[:1])
    if len(given) <= 1:
        return [_sorted(one) for one in given]
    try:
        fields = {name: _common([part.records.schema.field(name) for part in given]) for name in (KEY, VALUE)}
    except Apart:
        return _runs(given)
    for name, kind in fields.items():
        given = [part.replace(name, fitted(part.column(name), kind.type), kind.metadata) for part in given]
    return [_sorted(Batch(arrow.concat_batches([part.records for part in given])))]


def _sorted(batch: Batch) -> Batch:
    places = batch.places
    return batch if (np.diff(places) >= 0).all() else batch.take(np.argsort(places, kind="stable"))


def _common(fields: Sequence[pa.Field[Any]]) -> pa.Field[Any]:
    found = fields[0]
    for one in fields[1:]:
        for name in (NAME, VERSION, OPEN):
            if (found.metadata or {}).get(name) != (one.metadata or {}).get(name) and pa.null() not in (
                found.type,
                one.type,
            ):
                raise Apart(f"{one.name} has two schemas")
        found = merged(found, one, widen=False)
    return found


def _runs(parts: Sequence[Batch]) -> list[Batch]:
    """Rows of one part that come together, in order."""
    owners = np.concatenate([np.full(len(part), number) for number, part in enumerate(parts)])
    rows = np.concatenate([np.arange(len(part)) for part in parts])
    order = np.argsort(np.concatenate([part.places for part in parts]), kind="stable")
    owners, rows = owners[order], rows[order]
    cuts = np.flatnonzero(np.diff(owners)) + 1
    return [
        parts[int(owners[begin])].take(rows[begin:end])
        for begin, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(owners)], strict=True)
    ]
