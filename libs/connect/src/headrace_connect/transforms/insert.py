"""What a record knows of itself, as fields: InsertField. And the name of its schema: SetSchemaMetadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from headrace_connect.core.batch import NAME, OFFSET, PARTITION, TIMESTAMP, TOPIC, VERSION, Batch
from headrace_connect.core.halving import Unfit
from headrace_connect.core.kinds import nulls_of
from headrace_connect.core.options import NULL_DEFAULT, BadOption, Option, OptionType
from headrace_connect.transforms.port import OfSide, Settings

_MARK = "Its name; with ! behind it a null there fails, with ? (and without) it stays."


@dataclass(frozen=True, slots=True)
class _Insertion:
    name: str
    required: bool
    column: str
    """Of the batch; empty: the text that was given."""


class InsertField(OfSide):
    """Fields with the record's topic, partition, offset, time, or a text. A null key or value stays null."""

    options: ClassVar[tuple[Option, ...]] = (
        Option("topic.field", f"A field for the topic. {_MARK}"),
        Option("partition.field", f"A field for the partition. {_MARK}"),
        Option("offset.field", f"A field for the offset; only sinks have it. {_MARK}"),
        Option("timestamp.field", f"A field for the record's time. {_MARK}"),
        Option("static.field", f"A field with a text. {_MARK}"),
        Option("static.value", "The text."),
        NULL_DEFAULT,
    )
    _columns: ClassVar[dict[str, str]] = {
        "topic.field": TOPIC,
        "partition.field": PARTITION,
        "offset.field": OFFSET,
        "timestamp.field": TIMESTAMP,
        "static.field": "",
    }

    def __init__(self, settings: Settings, side: str) -> None:
        super().__init__(settings, side)
        self._text = settings["static.value"]
        self._insertions = [
            _Insertion(settings[option].removesuffix("!").removesuffix("?"), settings[option].endswith("!"), column)
            for option, column in self._columns.items()
            if settings[option]
        ]
        if not self._insertions:
            raise BadOption("topic.field", f"nothing is to be inserted; give one of {', '.join(self._columns)}")
        if settings["static.field"] and self._text is None:
            raise BadOption("static.value", "is missing; static.field needs it")

    def apply(self, batch: Batch) -> Batch:
        """See ``Transform``."""
        given = self.fields(batch)
        is_open = batch.is_open(self.side)
        for one in self._insertions:
            column = self._column(batch, one, is_open=is_open)
            missing = ~given.nulls & nulls_of(column)
            if one.column == OFFSET and missing.any():
                raise Unfit("the record has no offset yet: only sinks have offset.field", missing)
            if one.required and missing.any():
                raise Unfit(f"the record has no {one.column}, and {one.name} may not be null", missing)
            at = given.index(one.name)
            field = pa.field(one.name, column.type, not one.required)
            if at < 0 or not is_open:
                given.fields.append(field)
                given.columns.append(column)
            else:
                given.fields[at], given.columns[at] = field, column
        return batch.replace(self.side, given.array(self.array(batch)))

    def _column(self, batch: Batch, one: _Insertion, *, is_open: bool) -> Any:
        if not one.column:
            return pa.repeat(pa.scalar(self._text, pa.string()), len(batch))
        column = batch.column(one.column)
        return column.cast(pa.timestamp("ms", "UTC")) if one.column == TIMESTAMP and not is_open else column


class SetSchemaMetadata(OfSide):
    """The name and the version of the schema. What has no schema fails."""

    options: ClassVar[tuple[Option, ...]] = (
        Option("schema.name", "The name."),
        Option("schema.version", "The version.", OptionType.INT),
        NULL_DEFAULT,
    )

    def __init__(self, settings: Settings, side: str) -> None:
        super().__init__(settings, side)
        name, version = settings["schema.name"], settings["schema.version"]
        if name is None and version is None:
            raise BadOption("schema.name", "is missing; give it, or schema.version")
        self._metadata = {NAME: name and name.encode(), VERSION: None if version is None else str(version).encode()}

    def apply(self, batch: Batch) -> Batch:
        """See ``Transform``."""
        array = self.array(batch)
        nulls = nulls_of(array)
        if batch.is_open(self.side) and not nulls.all():
            raise Unfit(f"the {self.side} has no schema that could have a name", ~nulls)
        new = {name: text for name, text in self._metadata.items() if text is not None}
        return batch.replace(self.side, array, {**batch.metadata(self.side), **new})
