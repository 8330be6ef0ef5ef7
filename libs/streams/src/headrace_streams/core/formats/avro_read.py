"""
Avro's binary values to columns, by the schema that they were written with and the one that is wanted.

``resolved`` makes of both what reads a column, once; then whole arrays of values are read, piece by piece
(``avro_cursor``). Source: "Schema Resolution" and "Binary encoding" of the specification of Apache Avro 1.12.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace_streams.core.formats.avro_cursor import Cursor, Rows
from headrace_streams.core.formats.avro_schema import (
    NOTHING,
    AvroField,
    AvroType,
    BadSchema,
    branch_of,
    column_type,
    columns_of,
    joined,
)
from headrace_streams.core.formats.json_rows import EXACT
from headrace_streams.core.formats.json_text import MS_MAX, MS_MIN
from headrace_streams.core.formats.port import Decoded, Problem

arrow: Any = pa  # its stubs are narrower than it is
Array = Any
Read = Callable[[Cursor, Rows], Array]
"""The next value of each row: one Arrow array."""
Skip = Callable[[Cursor, Rows], None]
Path = tuple[str, ...]
_EMPTY_ITEMS_MAX: Final = 100_000
"""Items that take no bytes; there could be any number of them in a few bytes."""
_DAY_MS: Final = 86_400_000
_PROMOTED: Final = {
    "int": ("int", "long", "float", "double"),
    "long": ("long", "float", "double"),
    "float": ("float", "double"),
    "string": ("string", "bytes"),
    "bytes": ("bytes", "string"),
}
_WHOLE_BLOCKS: Final = ("float", "double")
"""Items that are read a block at a time: of any bytes, and of one size."""
_FIXED: Final = {"float": "<f4", "double": "<f8", "boolean": "u1"}
_PER_MS: Final = {"s": 0.001, "ms": 1, "us": 1_000, "ns": 1_000_000}


class AvroReader:
    """Reads values that were written with one schema, as columns of another."""

    def __init__(self, writer: AvroType, wanted: AvroType) -> None:
        """
        Raises:
            BadSchema: the one cannot be read as the other.
        """
        self.schema = columns_of(wanted)
        self._is_record = wanted.kind == "record"
        self._read = resolved(writer, wanted, ())

    def decode(self, values: pa.BinaryArray, begin: int = 0) -> Decoded:
        """
        Args:
            values: without nulls.
            begin: where the data begins in each; all have so many bytes.
        """
        cursor = Cursor(values)
        cursor.at += begin
        whole = self._read(cursor, np.arange(len(values)))
        cursor.finish()
        problems = [Problem(row, message[:200]) for row, message in sorted(cursor.failures.items())]
        columns = whole.flatten() if self._is_record else [whole]
        table = pa.Table.from_arrays(columns, schema=self.schema)
        if problems:
            table = table.filter(pa.array(cursor.sound(np.arange(len(values)))))
        return Decoded(table, problems)


def resolved(writer: AvroType, wanted: AvroType, path: Path) -> Read:
    """
    What reads values of ``writer`` as a column of ``wanted``.

    Raises:
        BadSchema: no value of the one can be read as the other.
    """
    if writer.kind == "union":
        return _union(writer, wanted, path)
    if wanted.kind == "union":
        return _of_wanted(writer, wanted, path)
    if writer.kind == wanted.kind and writer.kind in _NESTED:
        return _NESTED[writer.kind](writer, wanted, path)
    if wanted.kind in _PROMOTED.get(writer.kind, (writer.kind,)):
        return _scalar(writer, wanted, path)
    raise BadSchema(f"{_at(path)}is {writer} where {wanted} is wanted")


def _at(path: Path) -> str:
    return f"{joined(path)}: " if path else ""


def _place(path: Path) -> str:
    return joined(path) or "the value"


def _of_wanted(writer: AvroType, wanted: AvroType, path: Path) -> Read:
    """The first branch of the wanted union that it fits, first of all one of its own kind."""
    if writer.kind == "null" and any(part.kind == "null" for part in wanted.parts):
        kind = column_type(wanted, path)
        return lambda cursor, rows: arrow.nulls(len(rows), kind)
    branch = branch_of(wanted)
    if branch is None:
        column_type(wanted, path)  # says that it has none
        raise AssertionError("a union of several types is no column")
    return resolved(writer, branch, path)


def _union(writer: AvroType, wanted: AvroType, path: Path) -> Read:
    kind = column_type(wanted, path)
    reads: list[Read] = []
    reasons: list[str] = []
    for part in writer.parts:
        try:
            reads.append(resolved(part, wanted, path))
        except BadSchema as why:
            reasons.append(str(why))
            reads.append(_refusing(str(why), kind))
    if len(reasons) == len(reads):
        raise BadSchema(reasons[0])
    place = _place(path)

    def read(cursor: Cursor, rows: Rows) -> Array:
        branches = _branches(cursor, rows, len(reads), place)
        if len(rows) and (branches == branches[0]).all() and branches[0] >= 0:
            return reads[branches[0]](cursor, rows)
        order = np.full(len(rows), -1, np.int64)
        parts: list[Array] = []
        begin = 0
        for number, read_one in enumerate(reads):
            chosen = np.flatnonzero(branches == number)
            if len(chosen):
                order[chosen] = np.arange(begin, begin + len(chosen))
                begin += len(chosen)
                parts.append(read_one(cursor, rows[chosen]))
        if not parts:
            return arrow.nulls(len(rows), kind)
        return pa.concat_arrays(parts).take(pa.array(order, mask=order < 0))

    return read


def _branches(cursor: Cursor, rows: Rows, count: int, place: str) -> Rows:
    """Which branch each has; -1: none that there is."""
    branches = cursor.numbers(rows, place)
    wrong = np.flatnonzero((branches < 0) | (branches >= count) | ~cursor.sound(rows))
    if len(wrong):
        cursor.fail(rows[wrong], f"{place}: the union has no such branch")
        branches[wrong] = -1
    return branches


def _refusing(why: str, kind: pa.DataType) -> Read:
    def read(cursor: Cursor, rows: Rows) -> Array:
        cursor.fail(rows, why)
        return arrow.nulls(len(rows), kind)

    return read


def _same_name(writer: AvroType, wanted: AvroType, path: Path) -> None:
    names = [name.rpartition(".")[2] for name in (wanted.name, *wanted.aliases)]
    if writer.short not in names:
        raise BadSchema(f"{_at(path)}is {writer} where {wanted} is wanted; an alias would say that they are the same")


def _record(writer: AvroType, wanted: AvroType, path: Path) -> Read:
    _same_name(writer, wanted, path)
    whole: Any = column_type(wanted, path)
    fields = list(whole)
    steps: list[tuple[int, Read | None, Skip | None]] = []
    found: set[int] = set()
    for one in writer.fields:
        number = _wanted_field(one.name, wanted)
        here = (*path, one.name)
        if number < 0 or number in found:
            steps.append((-1, None, _skipping(one.type, here, ())))
            continue
        found.add(number)
        steps.append((number, resolved(one.type, wanted.fields[number].type, here), None))
    defaults = {number: _constant(one, path) for number, one in enumerate(wanted.fields) if number not in found}

    def read(cursor: Cursor, rows: Rows) -> Array:
        columns: list[Array] = [None] * len(fields)
        for number, read_one, skip in steps:
            if skip is not None:
                skip(cursor, rows)
            else:
                assert read_one is not None
                columns[number] = read_one(cursor, rows)
        for number, default in defaults.items():
            columns[number] = default(cursor, rows)
        if not columns:
            return pa.array([{}] * len(rows), pa.struct([]))
        return pa.StructArray.from_arrays(columns, fields=fields)

    return read


def _wanted_field(name: str, wanted: AvroType) -> int:
    """Where the wanted record has the field; -1: nowhere."""
    for number, one in enumerate(wanted.fields):
        if one.name == name:
            return number
    return next((number for number, one in enumerate(wanted.fields) if name in one.aliases), -1)


def _constant(one: AvroField, path: Path) -> Read:
    """The default of a field that the values do not have."""
    here = (*path, one.name)
    if one.default is NOTHING:
        raise BadSchema(f"{joined(here)}: the values have no such field, and it has no default")
    kind = column_type(one.type, here)
    try:
        value = default_of(one.type, one.default)
        pa.array([value], kind)
    except (ValueError, TypeError, ArithmeticError, pa.ArrowException):
        raise BadSchema(f"{joined(here)}: the default {one.default!r:.60} is not {one.type}") from None
    return lambda cursor, rows: pa.array([value] * len(rows), kind)


def default_of(kind: AvroType, given: Any) -> Any:
    """
    A default, as JSON gives it, as Arrow takes it.

    Raises:
        ValueError, TypeError: it is of another type.
    """
    if kind.kind == "union":
        for part in kind.parts:
            try:
                return default_of(part, given)
            except (ValueError, TypeError):
                continue
        raise ValueError("of no branch")
    if type(given) not in _OF_JSON[kind.kind]:
        raise TypeError("of another type")
    if kind.kind == "record":
        missing = [one.name for one in kind.fields if one.name not in given and one.default is NOTHING]
        if missing:
            raise ValueError("a field is missing")
        return {one.name: default_of(one.type, given.get(one.name, one.default)) for one in kind.fields}
    if kind.kind == "array":
        return [default_of(kind.parts[0], item) for item in given]
    if kind.kind == "map":
        return [(name, default_of(kind.parts[0], item)) for name, item in given.items()]
    if kind.kind in ("bytes", "fixed"):
        return _of_bytes(kind, given.encode("latin-1"))
    if kind.kind == "enum" and given not in kind.symbols:
        raise ValueError("no symbol")
    return float(given) if kind.kind in ("float", "double") else given


def _of_bytes(kind: AvroType, raw: bytes) -> Any:
    if kind.kind == "fixed" and len(raw) != kind.size:
        raise ValueError("of another size")
    if kind.logical == "decimal":
        return Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-kind.scale, EXACT)
    return _uuid_text(raw) if kind.logical == "uuid" else raw


_OF_JSON: Final[dict[str, tuple[type, ...]]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    "bytes": (str,),
    "fixed": (str,),
    "string": (str,),
    "enum": (str,),
    "array": (list,),
    "map": (dict,),
    "record": (dict,),
}


def _array(writer: AvroType, wanted: AvroType, path: Path) -> Read:
    here = (*path, "[]")
    read_item = resolved(writer.parts[0], wanted.parts[0], here)
    whole: Any = column_type(wanted, path)
    width, place = _least_bytes(writer.parts[0]), _place(path)
    dtype = _FIXED[writer.parts[0].kind] if writer.parts[0].kind in _WHOLE_BLOCKS else ""

    def read(cursor: Cursor, rows: Rows) -> Array:
        items: list[Array] = []

        def read_items(some: Rows, counts: Rows) -> None:
            if dtype:
                items.append(pa.array(cursor.runs(some, counts, dtype)).cast(whole.value_type))
            else:
                items.append(read_item(cursor, some))

        ends, order = _blocks(cursor, rows, width, place, read_items, whole_blocks=bool(dtype))
        flat = pa.concat_arrays(items).take(order) if items else pa.array([], whole.value_type)
        return pa.ListArray.from_arrays(ends, flat, type=whole)

    return read


def _map(writer: AvroType, wanted: AvroType, path: Path) -> Read:
    here = (*path, "[]")
    read_item = resolved(writer.parts[0], wanted.parts[0], here)
    read_name = _text(_place(here), pa.string())
    whole: Any = column_type(wanted, path)
    width, place = 1 + _least_bytes(writer.parts[0]), _place(path)

    def read(cursor: Cursor, rows: Rows) -> Array:
        names: list[Array] = []
        items: list[Array] = []

        def read_pair(some: Rows, counts: Rows) -> None:
            names.append(read_name(cursor, some))
            items.append(read_item(cursor, some))

        ends, order = _blocks(cursor, rows, width, place, read_pair)
        flat_names = pa.concat_arrays(names).take(order) if names else pa.array([], pa.string())
        flat = pa.concat_arrays(items).take(order) if items else pa.array([], whole.item_type)
        return pa.MapArray.from_arrays(ends, flat_names, flat, type=whole)

    return read


def _blocks(
    cursor: Cursor,
    rows: Rows,
    width: int,
    place: str,
    read_items: Callable[[Rows, Rows], None],
    *,
    whole_blocks: bool = False,
) -> tuple[Array, Array]:
    """
    Read the blocks of arrays, an item of each at a time, or all that are left of the block; where each array ends, and
    the order that puts the items, as they were read, array by array.
    """
    lengths = np.zeros(len(rows), np.int64)
    left = np.zeros(len(rows), np.int64)
    owners: list[Rows] = [np.zeros(0, np.int64)]
    going = np.arange(len(rows))
    while True:
        begins = going[left[going] == 0]
        if len(begins):
            left[begins] = _block_sizes(cursor, rows[begins], width, place)
        going = going[(left[going] > 0) & cursor.sound(rows[going])]
        if not len(going):
            break
        counts = left[going] if whole_blocks else np.ones(len(going), np.int64)
        read_items(rows[going], counts)
        owners.append(np.repeat(going, counts))
        lengths[going] += counts
        left[going] -= counts
    ends = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    return pa.array(ends), pa.array(np.argsort(np.concatenate(owners), kind="stable"))


def _block_sizes(cursor: Cursor, rows: Rows, width: int, place: str) -> Rows:
    sizes = cursor.numbers(rows, place)
    told = np.flatnonzero(sizes < 0)
    if len(told):  # the number of bytes of the block follows, for those that skip it
        cursor.numbers(rows[told], place)
        sizes[told] = -sizes[told]
    most = cursor.left(rows) // width if width else np.full(len(rows), _EMPTY_ITEMS_MAX)
    wrong = np.flatnonzero((sizes < 0) | (sizes > most))
    if len(wrong):
        cursor.fail(rows[wrong], f"{place}: there are fewer items than the value says")
        sizes[wrong] = 0
    return sizes


def _least_bytes(kind: AvroType, depth: int = 0) -> int:
    """The least number of bytes that a value of the type takes; of a record that holds itself, not less than 0."""
    if kind.kind == "fixed":
        return kind.size
    if kind.kind == "record":
        return sum(_least_bytes(one.type, depth + 1) for one in kind.fields) if depth < 4 else 0
    return {"null": 0, "float": 4, "double": 8}.get(kind.kind, 1)


def _skipping(kind: AvroType, path: Path, around: tuple[AvroType, ...]) -> Skip:
    """What passes values of a field that is not wanted."""
    place = _place(path)
    if kind in around:
        raise BadSchema(f"{_at(path)}record {kind.name!r} holds itself; such values cannot be read here")
    if kind.kind == "record":
        skips = [_skipping(one.type, (*path, one.name), (*around, kind)) for one in kind.fields]

        def skip_record(cursor: Cursor, rows: Rows) -> None:
            for skip in skips:
                skip(cursor, rows)

        return skip_record
    if kind.kind == "union":
        branches = [_skipping(part, path, around) for part in kind.parts]

        def skip_union(cursor: Cursor, rows: Rows) -> None:
            found = _branches(cursor, rows, len(branches), place)
            for number, skip in enumerate(branches):
                skip(cursor, rows[found == number])

        return skip_union
    if kind.kind in ("array", "map"):
        skip_item = _skipping(kind.parts[0], (*path, "[]"), around)
        named = kind.kind == "map"
        width = int(named) + _least_bytes(kind.parts[0])

        def skip_items(cursor: Cursor, rows: Rows) -> None:
            def skip_one(some: Rows, counts: Rows) -> None:
                if named:
                    cursor.slices(some, cursor.numbers(some, place), place)
                skip_item(cursor, some)

            _blocks(cursor, rows, width, place, skip_one)

        return skip_items
    return _skipping_scalar(kind, place)


def _skipping_scalar(kind: AvroType, place: str) -> Skip:
    def skip(cursor: Cursor, rows: Rows) -> None:
        if kind.kind in ("bytes", "string"):
            cursor.slices(rows, cursor.numbers(rows, place), place)
        elif kind.kind in ("int", "long", "enum"):
            cursor.numbers(rows, place)
        elif kind.kind != "null":
            size = kind.size if kind.kind == "fixed" else np.dtype(_FIXED[kind.kind]).itemsize
            cursor.slices(rows, np.full(len(rows), size), place)

    return skip


def _enum(writer: AvroType, wanted: AvroType, path: Path) -> Read:
    _same_name(writer, wanted, path)
    place = _place(path)
    known = {symbol: number for number, symbol in enumerate(wanted.symbols)}
    other = -1 if wanted.default is None else known[wanted.default]
    numbers = np.array([known.get(symbol, other) for symbol in writer.symbols])
    symbols = pa.array(wanted.symbols, pa.string())

    def read(cursor: Cursor, rows: Rows) -> Array:
        found = cursor.numbers(rows, place)
        _check(cursor, rows, (found >= 0) & (found < len(numbers)), f"{place}: enum {writer.name!r} has no such symbol")
        found[~cursor.sound(rows)] = 0
        chosen = numbers[found]
        _check(cursor, rows, chosen >= 0, f"{place}: its symbol is none of {', '.join(wanted.symbols)}")
        return symbols.take(pa.array(np.maximum(chosen, 0)))

    return read


def _check(cursor: Cursor, rows: Rows, good: Any, message: str) -> None:
    bad = np.flatnonzero(~good)
    if len(bad):
        cursor.fail(rows[bad], message)


def _scalar(writer: AvroType, wanted: AvroType, path: Path) -> Read:
    place = _place(path)
    kind = column_type(wanted, path)
    if writer.kind == "fixed":
        _same_name(writer, wanted, path)
        if writer.size != wanted.size:
            raise BadSchema(f"{_at(path)}has {writer.size} bytes where {wanted.size} are wanted")
    if writer.logical and wanted.logical:
        _same_logical(writer, wanted, path)
    if writer.kind == "null":
        return lambda cursor, rows: pa.nulls(len(rows))
    if wanted.logical == "decimal":
        return _decimal(wanted, writer, place)
    if writer.kind in ("bytes", "string"):
        return _text(place, pa.string() if wanted.kind == "string" else pa.binary())
    if writer.kind == "fixed":
        return _bytes_of(wanted, place)
    return _number(writer, kind, place)


def _same_logical(writer: AvroType, wanted: AvroType, path: Path) -> None:
    if writer.logical != wanted.logical or writer.scale != wanted.scale:
        raise BadSchema(
            f"{_at(path)}is {_logical(writer)} where {_logical(wanted)} is wanted; declare what is written, and cast"
        )


def _logical(kind: AvroType) -> str:
    return f"{kind.logical}({kind.precision},{kind.scale})" if kind.logical == "decimal" else kind.logical


def _number(writer: AvroType, kind: pa.DataType, place: str) -> Read:
    check = _range_of(kind)

    def read(cursor: Cursor, rows: Rows) -> Array:
        if writer.kind in _FIXED:
            found = cursor.fixed(rows, _FIXED[writer.kind], place)
            if writer.kind == "boolean":
                _check(cursor, rows, found <= 1, f"{place}: a boolean is one byte, 0 or 1")
                return pa.array(found.astype(bool))
            return pa.array(found).cast(kind)
        whole = cursor.numbers(rows, place)
        if writer.kind == "int":
            fits = (whole >= -(1 << 31)) & (whole < 1 << 31)
            _check(cursor, rows, fits, f"{place}: an int has 32 bits")
        if check is not None:
            good = (whole >= check[0]) & (whole < check[1])
            _check(cursor, rows, good, f"{place}: out of range for {kind}")
        whole[~cursor.sound(rows)] = 0
        if pa.types.is_floating(kind):
            return pa.array(whole.astype(kind.to_pandas_dtype()))
        narrow = whole.astype(np.int32) if kind.bit_width == 32 else whole
        return pa.array(narrow).view(kind)

    return read


def _range_of(kind: Any) -> tuple[int, int] | None:
    """Which whole numbers are times of this type: of a day, or in the years 1 to 9999."""
    if pa.types.is_time(kind):
        return 0, int(_DAY_MS * _PER_MS[kind.unit])
    if pa.types.is_date(kind):
        return MS_MIN // _DAY_MS, MS_MAX // _DAY_MS + 1
    if pa.types.is_timestamp(kind):
        per_ms = int(_PER_MS[kind.unit])
        return max(MS_MIN * per_ms, -(1 << 63)), min((MS_MAX + 1) * per_ms, (1 << 63) - 1)
    return None


def _text(place: str, kind: pa.DataType) -> Read:
    def read(cursor: Cursor, rows: Rows) -> Array:
        at, lengths = cursor.slices(rows, cursor.numbers(rows, place), place)
        found: Any = cursor.copied(at, lengths)
        if kind == pa.binary():
            return found
        try:
            return found.cast(kind)
        except pa.ArrowInvalid:
            good = np.array([_is_utf8(text) for text in found.to_pylist()])
            _check(cursor, rows, good, f"{place}: the text is not UTF-8")
            return cursor.copied(at, np.where(good, lengths, 0)).cast(kind)

    return read


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _bytes_of(kind: AvroType, place: str) -> Read:
    def read(cursor: Cursor, rows: Rows) -> Array:
        at, lengths = cursor.slices(rows, np.full(len(rows), kind.size), place)
        found = cursor.copied(at, lengths)
        return found if not kind.logical else pa.array([_uuid_text(raw) for raw in found.to_pylist()], pa.string())

    return read


def _uuid_text(raw: bytes | None) -> str:
    assert raw is not None
    text = raw.hex()
    return "-".join([text[:8], text[8:12], text[12:16], text[16:20], text[20:]])


def _decimal(wanted: AvroType, writer: AvroType, place: str) -> Read:
    kind = pa.decimal128(wanted.precision, wanted.scale)
    end = 10**wanted.precision
    fitting = end < 1 << 63

    def read(cursor: Cursor, rows: Rows) -> Array:
        sizes = np.full(len(rows), writer.size) if writer.kind == "fixed" else cursor.numbers(rows, place)
        at, lengths = cursor.slices(rows, sizes, place)
        _check(cursor, rows, lengths <= 16, f"{place}: a decimal of more than 16 bytes")
        raw = np.ascontiguousarray(cursor.sixteen(at, np.minimum(lengths, 16)))
        halves = raw.view("<i8").reshape(len(rows), 2)
        low, high = halves[:, 0], halves[:, 1]
        if fitting:
            good = (high == low >> 63) & (low > -end) & (low < end)
        else:
            whole = [(int(h) << 64) | (int(n) & 0xFFFF_FFFF_FFFF_FFFF) for h, n in zip(high, low, strict=True)]
            good = np.array([-end < number < end for number in whole], bool)
        _check(cursor, rows, good, f"{place}: it has more than {wanted.precision} digits")
        raw[~cursor.sound(rows)] = 0
        return arrow.Array.from_buffers(kind, len(rows), [None, arrow.py_buffer(raw)])

    return read


_NESTED: Final[dict[str, Callable[[AvroType, AvroType, Path], Read]]] = {
    "record": _record,
    "array": _array,
    "map": _map,
    "enum": _enum,
}
