"""What a transform and a predicate are; and what most transforms have in common: the key or value that they change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol

import numpy as np
import pyarrow as pa

from headrace_connect.core.batch import KEY, VALUE, Batch
from headrace_connect.core.halving import Unfit
from headrace_connect.core.kinds import nulls_of, struct_of
from headrace_connect.core.options import Option

arrow: Any = pa  # its stubs are narrower than it is
Settings = Mapping[str, Any]
SIDES: Final[Mapping[str, str]] = {"Key": KEY, "Value": VALUE}
"""What is behind the ``$`` of a transform's name, and the column that it means."""


class Transform(Protocol):
    """Changes records, each for itself: what becomes of a row does not depend on the rows around it."""

    def apply(self, batch: Batch) -> Batch:
        """
        Places stay; rows may be left out.

        Raises:
            Unfit, or what Arrow raises for values: a row of the batch cannot be transformed.
        """
        ...


def with_nulls(batch: Batch, nulls: Any, made: Batch, side: str) -> Batch:
    """What became of the rows that are not null, and those that are, as they were, in the order of ``batch``."""
    if not nulls.any():
        return made
    whole = made.column(side)
    rest = batch.filter(nulls).replace(side, pa.nulls(int(nulls.sum()), whole.type), made.metadata(side))
    both = Batch(arrow.concat_batches([made.records, rest.records]))
    return both.take(np.argsort(both.places, kind="stable"))


class Predicate(Protocol):
    """Chooses records."""

    def holds(self, batch: Batch) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """True for each row that is chosen; never fails."""
        ...


class OfRecord:
    """A transform of topics, headers or whole records. ``__init__`` raises ``BadOption`` for what does not do."""

    options: ClassVar[tuple[Option, ...]] = ()

    def __init__(self, settings: Settings) -> None:
        pass


class OfSide:
    """A transform of keys or of values: it is named with ``$Key`` or ``$Value``."""

    options: ClassVar[tuple[Option, ...]] = ()

    def __init__(self, settings: Settings, side: str) -> None:
        self.side = side

    def array(self, batch: Batch) -> Any:
        """The keys, or the values."""
        return batch.column(self.side)

    def fields(self, batch: Batch) -> Fields:
        """
        The columns of the keys or values.

        Raises:
            Unfit: one has none and is not null.
        """
        return Fields.of(self.array(batch), self.side)


class Fields:
    """A struct taken apart: its columns, null where the struct is."""

    def __init__(self, fields: Sequence[pa.Field[Any]], columns: Sequence[Any], nulls: Any) -> None:
        self.fields = list(fields)
        self.columns = list(columns)
        self.nulls = nulls
        """True where there is no struct at all."""

    @classmethod
    def of(cls, array: Any, what: str) -> Fields:
        """
        Raises:
            Unfit: a value is no struct.
        """
        nulls = nulls_of(array)
        if pa.types.is_struct(array.type):
            return cls(list(array.type), array.flatten(), nulls)
        if not nulls.all():
            raise Unfit(f"the {what} has no fields: it is {array.type}", ~nulls)
        return cls([], [], nulls)

    def index(self, name: str) -> int:
        """Where a field is; -1: nowhere."""
        return next((at for at, field in enumerate(self.fields) if field.name == name), -1)

    def array(self, given: Any) -> Any:
        """
        The struct again.

        Args:
            given: the array that it was made of; is the answer where nothing but nulls was there.

        Raises:
            Unfit: two fields have one name.
        """
        if not pa.types.is_struct(given.type):
            return given
        names = [field.name for field in self.fields]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None and not self.nulls.all():
            raise Unfit(f"there would be two fields {twice!r}", ~self.nulls)
        if twice is not None:  # nothing but nulls: any struct will do
            return given
        return struct_of(self.fields, self.columns, self.nulls)
