"""What a SCHEMA message says of a stream, and its records as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from headrace_connect.connectors.singer.messages import SchemaMessage
from headrace_connect.connectors.singer.schemas import Kind, UnfitSchema, kind_of
from headrace_connect.core.halving import Unfit, apart

Types: TypeAlias = Literal["schema", "json"]
Extra: TypeAlias = Literal["refuse", "drop"]
Records: TypeAlias = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """Of a stream, from one SCHEMA message on."""

    message: SchemaMessage
    kind: Kind | None
    """None: values are as JSON has them."""

    @classmethod
    def of(cls, message: SchemaMessage, types: Types, extra: Extra) -> Shape:
        """
        Raises:
            UnfitSchema: it describes no records, or has no property of a key.
        """
        kind = kind_of(message.schema, drop_extra=extra == "drop") if types == "schema" else None
        names = message.schema.get("properties")
        missing = [key for key in message.keys if not isinstance(names, dict) or key not in names]
        if missing:
            raise UnfitSchema(f"it has no property {missing[0]!r}, which key_properties has")
        return cls(message, kind)

    @property
    def exact(self) -> bool:
        """Whether numbers must be read with all of their digits."""
        return self.kind is not None and self.kind.exact

    def convert(self, records: Records) -> tuple[Any, Any, dict[int, str]]:
        """
        Values and keys of the good records, and by their index what is wrong with the others. Keys are None where the
        stream has none.
        """
        results, failed = apart(_Slice(records), self._convert)
        values, keys = [one for _, (one, _) in results], [one for _, (_, one) in results if one is not None]
        if self.kind is None:
            plain, plain_keys = list(chain.from_iterable(values)), list(chain.from_iterable(keys))
            return plain, plain_keys if self.message.keys else None, failed
        of_keys = pa.concat_arrays(keys) if keys else pa.array([], self._key_type())
        whole = pa.concat_arrays(values) if values else pa.array([], self.kind.arrow)
        return whole, of_keys if self.message.keys else None, failed

    def _convert(self, part: _Slice) -> tuple[Any, Any]:
        records, names = part.records, self.message.keys
        for name in names:
            missing = [record.get(name) is None for record in records]
            if any(missing):
                raise Unfit(f"{name} is null or missing, and is of the key", missing)
        if self.kind is None:
            return list(records), [{name: record[name] for name in names} for record in records]
        read = self.kind.read
        assert read is not None, "objects are looked at"
        values: Any = pa.array([read(record) for record in records], self.kind.arrow)
        if not names:
            return values, None
        columns = [values.field(name) for name in names]
        return values, pa.StructArray.from_arrays(columns, fields=list(self._key_type()))

    def _key_type(self) -> Any:
        assert self.kind is not None, "keys of JSON have no type"
        fields = [self.kind.arrow.field(name).with_nullable(False) for name in self.message.keys]
        return pa.struct(fields)


@dataclass(frozen=True, slots=True)
class _Slice:
    """Satisfies what ``apart`` asks of rows."""

    records: Records

    def __len__(self) -> int:
        return len(self.records)

    def slice(self, start: int, count: int | None = None) -> _Slice:
        return _Slice(self.records[start:] if count is None else self.records[start : start + count])

    def filter(self, mask: Any) -> _Slice:
        return _Slice([record for record, stays in zip(self.records, mask.to_pylist(), strict=True) if stays])
