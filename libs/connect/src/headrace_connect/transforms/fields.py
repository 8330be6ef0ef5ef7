"""Which fields there are, and what they are called: ReplaceField, ExtractField, HoistField, Flatten, ValueToKey."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from headrace_connect.core.batch import KEY, NAME, OPEN, VALUE, VERSION, Batch
from headrace_connect.core.halving import Unfit
from headrace_connect.core.kinds import struct_of
from headrace_connect.core.options import NULL_DEFAULT, REQUIRED, BadOption, Option, OptionType
from headrace_connect.transforms.paths import parse_path
from headrace_connect.transforms.port import Fields, OfRecord, OfSide, Settings


class ReplaceField(OfSide):
    """Leaves fields out, and renames them."""

    options: ClassVar[tuple[Option, ...]] = (
        Option("exclude", "Fields that are left out; counts before include.", OptionType.LIST, ()),
        Option("include", "The only fields that stay; none: all.", OptionType.LIST, ()),
        Option("renames", "Pairs like old:new.", OptionType.LIST, ()),
        NULL_DEFAULT,
    )

    def __init__(self, settings: Settings, side: str) -> None:
        super().__init__(settings, side)
        self._exclude = set(settings["exclude"])
        self._include = set(settings["include"])
        pairs = [pair.split(":") for pair in settings["renames"]]
        wrong = next((pair for pair in pairs if len(pair) != 2 or "" in pair), None)
        if wrong is not None:
            raise BadOption("renames", f"{':'.join(wrong)[:80]!r} is no pair like old:new")
        self._renames = {pair[0]: pair[1] for pair in pairs}

    def apply(self, batch: Batch) -> Batch:
        """See ``Transform``."""
        given = self.fields(batch)
        stays = [at for at, field in enumerate(given.fields) if self._stays(field.name)]
        fields = [given.fields[at] for at in stays]
        renamed = [field.with_name(self._renames.get(field.name, field.name)) for field in fields]
        made = Fields(renamed, [given.columns[at] for at in stays], given.nulls)
        return batch.replace(self.side, made.array(self.array(batch)))

    def _stays(self, name: str) -> bool:
        return name not in self._exclude and (not self._include or name in self._include)


class ExtractField(OfSide):
    """A field in the place of the whole key or value. Null stays null."""

    options: ClassVar[tuple[Option, ...]] = (
        Option("field", "The field's name.", default=REQUIRED),
        Option(
            "field.syntax.version",
            "V1: the name of a field; V2: names with points between are fields within fields, a name with points in it "
            "stands in `backticks`.",
            default="V1",
            choices=("V1", "V2"),
        ),
        NULL_DEFAULT,
    )

    def __init__(self, settings: Settings, side: str) -> None:
        super().__init__(settings, side)
        self._text = settings["field"]
        self._path = (self._text,) if settings["field.syntax.version"] == "V1" else parse_path("field", self._text)

    def apply(self, batch: Batch) -> Batch:
        """See ``Transform``."""
        array = self.array(batch)
        metadata: dict[bytes, bytes] = {}
        for step in self._path:
            given = Fields.of(array, self.side)
            at = given.index(step)
            if at < 0 and not batch.is_open(self.side) and not given.nulls.all():
                raise Unfit(f"the {self.side} has no field {self._text!r}", ~given.nulls)
            if at < 0:
                array, metadata = pa.nulls(len(array)), {}
                break
            array, metadata = given.columns[at], dict(given.fields[at].metadata or {})
        if batch.is_open(self.side):
            metadata[OPEN] = b"1"
        return batch.replace(self.side, array, metadata)


class HoistField(OfSide):
    """The whole key or value as the one field of a struct; null too."""

    options: ClassVar[tuple[Option, ...]] = (Option("field", "The field's name.", default=REQUIRED),)

    def __init__(self, settings: Settings, side: str) -> None:
        super().__init__(settings, side)
        self._name = settings["field"]

    def apply(self, batch: Batch) -> Batch:
        """See ``Transform``."""
        array = self.array(batch)
        known = batch.metadata(self.side)
        inner = {name: known[name] for name in (NAME, VERSION) if name in known}
        outer = {OPEN: b"1"} if OPEN in known else {}
        field = pa.field(self._name, array.type, metadata=inner)
        return batch.replace(self.side, struct_of([field], [array], np.zeros(len(batch), bool)), outer)


class Flatten(OfSide):
    """Fields of fields as fields of their own, whose names are joined. Lists stay as they are."""

    options: ClassVar[tuple[Option, ...]] = (Option("delimiter", "Between the names.", default="."),)

    def __init__(self, settings: Settings, side: str) -> None:
        super().__init__(settings, side)
        self._delimiter = settings["delimiter"]

    def apply(self, batch: Batch) -> Batch:
        """See ``Transform``."""
        given = self.fields(batch)
        fields, columns = self._flat(given, "", nullable=False)
        return batch.replace(self.side, Fields(fields, columns, given.nulls).array(self.array(batch)))

    def _flat(self, given: Fields, before: str, *, nullable: bool) -> tuple[list[Any], list[Any]]:
        fields: list[Any] = []
        columns: list[Any] = []
        for field, column in zip(given.fields, given.columns, strict=True):
            name = before + field.name
            may_be_null = nullable or field.nullable
            if pa.types.is_struct(field.type):
                inner = self._flat(Fields.of(column, name), name + self._delimiter, nullable=may_be_null)
                fields += inner[0]
                columns += inner[1]
                continue
            if pa.types.is_map(field.type) and not given.nulls.all():
                raise Unfit(f"{name} is a map, which cannot be flattened: its names are not known", ~given.nulls)
            fields.append(field.with_name(name).with_nullable(may_be_null))
            columns.append(column)
        return fields, columns


class ValueToKey(OfRecord):
    """A key of fields of the value."""

    options: ClassVar[tuple[Option, ...]] = (
        Option("fields", "The fields of the value.", OptionType.LIST, REQUIRED),
        NULL_DEFAULT,
    )

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._names = settings["fields"]
        if len(set(self._names)) < len(self._names):
            raise BadOption("fields", "has a name twice")

    def apply(self, batch: Batch) -> Batch:
        """See ``Transform``."""
        given = Fields.of(batch.column(VALUE), VALUE)
        if given.nulls.any():
            raise Unfit("the value is null, so it has no fields for a key", given.nulls)
        fields: list[Any] = []
        columns: list[Any] = []
        for name in self._names:
            at = given.index(name)
            if at < 0 and not batch.is_open(VALUE) and len(batch):
                raise Unfit(f"the value has no field {name!r}", ~given.nulls)
            fields.append(pa.field(name, pa.null()) if at < 0 else given.fields[at])
            columns.append(pa.nulls(len(batch)) if at < 0 else given.columns[at])
        key = struct_of(fields, columns, np.zeros(len(batch), bool))
        return batch.replace(KEY, key, {OPEN: b"1"} if batch.is_open(VALUE) else {})
