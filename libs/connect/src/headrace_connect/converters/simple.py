"""``string`` and ``bytes``: Kafka's StringConverter and ByteArrayConverter."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from headrace_common.core.batch.byte_columns import as_binary
from headrace_connect.converters.port import Part, Read, Written
from headrace_connect.core.halving import Unfit, apart
from headrace_connect.core.options import BadOption, Option
from headrace_connect.core.texts import text_of


class StringConverter:
    """Text as it is; of other types what ``Cast`` to ``string`` makes, of structs, lists and maps JSON."""

    options: ClassVar[tuple[Option, ...]] = (Option("converter.encoding", "How text is encoded.", default="UTF-8"),)

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """
        Raises:
            BadOption: there is no such encoding.
        """
        name = settings["converter.encoding"]
        try:
            self._encoding = codecs.lookup(name).name
            "".encode(self._encoding)
        except (LookupError, UnicodeError):
            raise BadOption(
                "converter.encoding", f"{name[:40]!r} is no encoding of text; UTF-8 is what most use"
            ) from None

    def read(self, topic: str, values: Any) -> Read:
        """See ``Converter``."""
        return _read(as_binary(values), self._decode)

    def _decode(self, values: Any) -> Any:
        if self._encoding == "utf-8":
            try:
                return values.cast(pa.string())
            except pa.ArrowInvalid:
                if len(values) > 1:
                    raise
        try:
            return pa.array(
                [None if one is None else one.decode(self._encoding) for one in values.to_pylist()], pa.string()
            )
        except UnicodeDecodeError as wrong:
            raise Unfit(f"the value is not {self._encoding}: {wrong.reason} at byte {wrong.start}") from None

    def write(self, topic: str, values: Any, metadata: Mapping[bytes, bytes]) -> Written:
        """See ``Converter``."""
        return _write(values, self._encode)

    def _encode(self, values: Any) -> Any:
        texts = text_of(values)
        if self._encoding == "utf-8":
            return texts.cast(pa.binary())
        try:
            return pa.array(
                [None if one is None else one.encode(self._encoding) for one in texts.to_pylist()], pa.binary()
            )
        except UnicodeEncodeError as wrong:
            raise Unfit(f"the value is not {self._encoding}: {wrong.reason} at character {wrong.start}") from None


class BytesConverter:
    """Bytes as they are; anything else is refused."""

    options: ClassVar[tuple[Option, ...]] = ()

    def __init__(self, settings: Mapping[str, Any]) -> None:
        pass

    def read(self, topic: str, values: Any) -> Read:
        """See ``Converter``."""
        return _read(as_binary(values), lambda part: part.cast(pa.binary()))

    def write(self, topic: str, values: Any, metadata: Mapping[bytes, bytes]) -> Written:
        """See ``Converter``."""
        return _write(values, _as_bytes)


def _as_bytes(values: Any) -> Any:
    kind = values.type
    types = pa.types
    if types.is_null(kind) or types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return values.cast(pa.binary())
    if values.null_count == len(values):
        return pa.nulls(len(values), pa.binary())
    raise Unfit(
        f"the value is {kind}, not bytes; take another converter: json, string, avro",
        values.is_valid().to_numpy(zero_copy_only=False),
    )


def _read(values: Any, decode: Any) -> Read:
    results, failed = apart(values, decode)
    if not results:
        return Read([], failed)
    rows = np.concatenate([indices for indices, _ in results])
    return Read([Part(rows, pa.concat_arrays([array for _, array in results]))], failed)


def _write(values: Any, encode: Any) -> Written:
    results, failed = apart(values, encode)
    arrays = [array for _, array in results]
    return Written(pa.concat_arrays(arrays) if arrays else pa.array([], pa.binary()), failed)
