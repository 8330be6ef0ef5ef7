"""``json``: Kafka's JsonConverter. With ``schemas.enable``, each value is ``{"schema": …, "payload": …}``."""

from __future__ import annotations

import json as standard
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar, Final

import numpy as np
import orjson
import pyarrow as pa
from pyarrow import compute

from headrace_common.core.batch.byte_columns import as_binary
from headrace_connect.converters.json_plain import Inference
from headrace_connect.converters.port import Part, Read, Written
from headrace_connect.converters.schema_names import DECIMAL
from headrace_connect.converters.schema_read import array_of, field_of, reader_of
from headrace_connect.converters.schema_write import node_of, raw
from headrace_connect.core.halving import Unfit, apart
from headrace_connect.core.kinds import Apart, fitted, merged
from headrace_connect.core.options import Option, OptionType
from headrace_streams.core.formats.json_text import Unwritable, texts

pc: Any = compute  # its stubs are narrower than it is
_TOPICS_MAX: Final = 1_000
"""Topics whose types are kept; of more, those seen longest ago are learnt anew."""
_SCHEMAS_MAX: Final = 1_000


class JsonConverter:
    """See the module. ``schemas.enable=false``: plain values, whose types are found (``json_plain``)."""

    options: ClassVar[tuple[Option, ...]] = (
        Option("schemas.enable", "Whether each value has its schema with it.", OptionType.BOOLEAN, True),
        Option("schemas.cache.size", "How many schemas are kept at most.", OptionType.INT, _SCHEMAS_MAX),
        Option(
            "decimal.format",
            "How decimals are written: BASE64, the bytes of the whole number; or NUMERIC, a JSON number.",
            default="BASE64",
            choices=("BASE64", "NUMERIC"),
        ),
        Option(
            "replace.null.with.default",
            "Whether null is read as the default of its schema, where there is one.",
            OptionType.BOOLEAN,
            True,
        ),
    )

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._schemas = settings["schemas.enable"]
        self._numeric = settings["decimal.format"] == "NUMERIC"
        self._topics: dict[str, Inference] = {}
        self._envelope = _EnvelopeReader(max(1, settings["schemas.cache.size"]), settings["replace.null.with.default"])

    def read(self, topic: str, values: Any) -> Read:
        """See ``Converter``."""
        if self._schemas:
            return self._envelope.read(as_binary(values))
        known = self._topics.pop(topic, None) or Inference()
        self._topics[topic] = known  # as the newest
        if len(self._topics) > _TOPICS_MAX:
            del self._topics[next(iter(self._topics))]
        return known.read(values)

    def write(self, topic: str, values: Any, metadata: Mapping[bytes, bytes]) -> Written:
        """See ``Converter``."""
        field = pa.field("", values.type, metadata=dict(metadata))
        results, failed = apart(values, lambda part: self._write(part, field))
        arrays = [array for _, array in results]
        return Written(pa.concat_arrays(arrays) if arrays else pa.array([], pa.binary()), failed)

    def _write(self, values: Any, field: Any) -> Any:
        before, after = "", ""
        if self._schemas:
            before, after = f'{{"schema":{orjson.dumps(_required(node_of(field))).decode()},"payload":', "}"
        elif not pa.types.is_null(values.type):
            node_of(field)  # refuses what has no form in JSON
        try:
            written = texts(raw(values, decimal_numbers=self._numeric))
        except Unwritable as why:
            raise Unfit(str(why)) from None
        made = pc.binary_join_element_wise(before, written, after, "")
        return pc.if_else(values.is_valid(), made, None).cast(pa.binary())


def _required(node: dict[str, Any]) -> dict[str, Any]:
    """A null value has no envelope, so what is in one is there."""
    return {**node, "optional": False}


@dataclass(frozen=True, slots=True, eq=False)
class _Schema:
    field: Any
    read: Any
    exact: bool
    """Whether it has decimals, which may be written as numbers that no double can hold."""

    def parse(self, text: bytes) -> Any:
        return standard.loads(text, parse_float=Decimal) if self.exact else orjson.loads(text)


class _EnvelopeReader:
    """Reads values that have their schema with them; each distinct schema is looked at once."""

    def __init__(self, schemas_max: int, replace_nulls: bool) -> None:
        self._schemas_max = schemas_max
        self._replace_nulls = replace_nulls
        self._known: dict[bytes, _Schema | Unfit] = {}
        self._last: tuple[bytes, _Schema] | None = None

    def read(self, values: Any) -> Read:
        rows: list[tuple[int, _Schema | None, Any]] = []
        failed: dict[int, str] = {}
        for row, value in enumerate(values.to_pylist()):
            try:
                schema, payload = (None, None) if value is None else self._open(value)
                rows.append((row, schema, None if schema is None else schema.read(payload)))
            except Unfit as why:
                failed[row] = str(why)
        schemas = list(dict.fromkeys(schema for _, schema, _ in rows if schema is not None))
        parts: list[Part] = []
        for field, run in _runs(rows, schemas):
            read, bad = _arrays(run, field)
            failed |= bad
            parts.append(read)
        return Read(parts, failed)

    def _open(self, value: bytes) -> tuple[_Schema | None, Any]:
        """
        The schema and the payload of a value.

        Raises:
            Unfit: it is none.
        """
        if self._last is not None and value.startswith(self._last[0]) and value.endswith(b"}"):
            try:
                return self._last[1], self._last[1].parse(value[len(self._last[0]) : -1])
            except ValueError:
                pass
        try:
            whole = orjson.loads(value)
        except orjson.JSONDecodeError as wrong:
            raise Unfit(
                f"the value is not JSON: {wrong}" if value else "the value is empty, which is not JSON"
            ) from None
        if whole is None:
            return None, None
        if type(whole) is not dict or whole.keys() != {"schema", "payload"}:
            raise Unfit(
                'the value is not an object of "schema" and "payload" alone; if there is no schema in it, set '
                "schemas.enable=false"
            )
        if whole["schema"] is None:
            if whole["payload"] is None:
                return None, None
            raise Unfit("the value has a payload and its schema is null; set schemas.enable=false to read it")
        schema = self._schema(whole["schema"])
        self._remember(value, schema)
        return schema, schema.parse(value)["payload"] if schema.exact else whole["payload"]

    def _schema(self, node: Any) -> _Schema:
        text = orjson.dumps(node)
        if text not in self._known:
            try:
                made: _Schema | Unfit = _Schema(
                    field_of(node), reader_of(node, replace_nulls=self._replace_nulls), DECIMAL.encode() in text
                )
            except Unfit as why:
                made = why
            if len(self._known) >= self._schemas_max:
                del self._known[next(iter(self._known))]
            self._known[text] = made
        found = self._known[text]
        if isinstance(found, Unfit):
            raise Unfit(str(found))
        return found

    def _remember(self, value: bytes, schema: _Schema) -> None:
        """What comes before the payload: the next value has mostly the same, and need not be parsed there."""
        mark = b'"payload"'
        at = value.find(mark)
        while at >= 0:
            begin = value[: at + len(mark)].rstrip()
            colon = value.find(b":", len(begin))
            head = value[: colon + 1]
            try:
                if list(orjson.loads(head + b"null}")) == ["schema", "payload"]:
                    self._last = (head, schema)
                    return
            except orjson.JSONDecodeError:
                pass
            at = value.find(mark, at + 1)


_Rows = list[tuple[int, _Schema | None, Any]]


def _runs(rows: _Rows, schemas: list[_Schema]) -> list[tuple[Any, _Rows]]:
    """All rows under one field that holds them all; if there is none, rows with equal schemas that come together."""
    field = pa.field("", pa.null())
    try:
        for schema in schemas:
            field = merged(field, schema.field, widen=True)
        return [(field, rows)] if rows else []
    except Apart:
        pass
    owner = schemas[0]
    filled: list[tuple[_Schema, tuple[int, _Schema | None, Any]]] = []
    for one in rows:  # a null goes with what is before it
        owner = one[1] or owner
        filled.append((owner, one))
    return [(schema.field, [one for _, one in run]) for schema, run in groupby(filled, key=itemgetter(0))]


def _arrays(rows: _Rows, field: Any) -> tuple[Part, dict[int, str]]:
    numbers = np.array([row for row, _, _ in rows], np.int64)
    kept: dict[int, str] = {}
    values = [value for _, _, value in rows]
    try:
        whole = array_of(values, field.type)
    except Unfit:
        results, failed = apart(_List(values), lambda part: array_of(part.values, field.type))
        kept = {int(numbers[at]): why for at, why in failed.items()}
        arrays = [array for _, array in results]
        numbers = numbers[[at for indices, _ in results for at in indices.tolist()]]
        whole = pa.concat_arrays(arrays) if arrays else pa.array([], field.type)
    return Part(numbers, fitted(whole, field.type), dict(field.metadata or {})), kept


@dataclass(frozen=True, slots=True)
class _List:
    """A list that is halved."""

    values: list[Any]

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, start: int, count: int | None = None) -> _List:
        return _List(self.values[start:] if count is None else self.values[start : start + count])

    def filter(self, mask: Any) -> _List:
        return _List([value for value, stays in zip(self.values, mask.to_pylist(), strict=True) if stays])
