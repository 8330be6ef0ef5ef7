"""
Programs that read topics, keep state and write topics: `headrace.streams` is this package.

Names are loaded when they are first used, so that who needs a part of it does not load all.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from narwhals.stable.v2 import all_horizontal as all_horizontal
    from narwhals.stable.v2 import any_horizontal as any_horizontal
    from narwhals.stable.v2 import coalesce as coalesce
    from narwhals.stable.v2 import col as col
    from narwhals.stable.v2 import concat_str as concat_str
    from narwhals.stable.v2 import lit as lit
    from narwhals.stable.v2 import when as when

    from headrace_streams.adapters.schema_registry import SchemaRegistry as SchemaRegistry
    from headrace_streams.core.errors import NotAllowed as NotAllowed
    from headrace_streams.core.errors import RowFailed as RowFailed
    from headrace_streams.core.errors import StateFailed as StateFailed
    from headrace_streams.core.formats import arrow as arrow
    from headrace_streams.core.formats import bytes as bytes
    from headrace_streams.core.formats import custom as custom
    from headrace_streams.core.formats import string as string
    from headrace_streams.core.formats import struct as struct
    from headrace_streams.dsl import agg as agg
    from headrace_streams.dsl.app import App as App
    from headrace_streams.dsl.cogroup import cogroup as cogroup
    from headrace_streams.dsl.columns import Grouped as Grouped
    from headrace_streams.dsl.global_table import GlobalTable as GlobalTable
    from headrace_streams.dsl.lifting import versioned as versioned
    from headrace_streams.dsl.record_calls import ttl as ttl
    from headrace_streams.dsl.record_calls import value as value
    from headrace_streams.dsl.stream import Stream as Stream
    from headrace_streams.dsl.table import Table as Table
    from headrace_streams.dsl.windows import at_most_every as at_most_every
    from headrace_streams.dsl.windows import counting as counting
    from headrace_streams.dsl.windows import hopping as hopping
    from headrace_streams.dsl.windows import session as session
    from headrace_streams.dsl.windows import sliding as sliding
    from headrace_streams.dsl.windows import tumbling as tumbling
    from headrace_streams.formats import avro as avro
    from headrace_streams.formats import json as json
    from headrace_streams.formats import protobuf as protobuf
    from headrace_streams.stores import Stores as Stores

_HOME: Final = {  # ":": the module itself
    "App": "headrace_streams.dsl.app",
    "GlobalTable": "headrace_streams.dsl.global_table",
    "Grouped": "headrace_streams.dsl.columns",
    "NotAllowed": "headrace_streams.core.errors",
    "RowFailed": "headrace_streams.core.errors",
    "SchemaRegistry": "headrace_streams.adapters.schema_registry",
    "StateFailed": "headrace_streams.core.errors",
    "Stores": "headrace_streams.stores",
    "Stream": "headrace_streams.dsl.stream",
    "Table": "headrace_streams.dsl.table",
    "agg": "headrace_streams.dsl.agg:",
    "all_horizontal": "narwhals.stable.v2",
    "any_horizontal": "narwhals.stable.v2",
    "arrow": "headrace_streams.core.formats",
    "at_most_every": "headrace_streams.dsl.windows",
    "avro": "headrace_streams.formats",
    "bytes": "headrace_streams.core.formats",
    "coalesce": "narwhals.stable.v2",
    "cogroup": "headrace_streams.dsl.cogroup",
    "col": "narwhals.stable.v2",
    "concat_str": "narwhals.stable.v2",
    "counting": "headrace_streams.dsl.windows",
    "custom": "headrace_streams.core.formats",
    "hopping": "headrace_streams.dsl.windows",
    "json": "headrace_streams.formats",
    "lit": "narwhals.stable.v2",
    "protobuf": "headrace_streams.formats",
    "session": "headrace_streams.dsl.windows",
    "sliding": "headrace_streams.dsl.windows",
    "string": "headrace_streams.core.formats",
    "struct": "headrace_streams.core.formats",
    "ttl": "headrace_streams.dsl.record_calls",
    "tumbling": "headrace_streams.dsl.windows",
    "value": "headrace_streams.dsl.record_calls",
    "versioned": "headrace_streams.dsl.lifting",
    "when": "narwhals.stable.v2",
}
__all__ = [
    "App",
    "GlobalTable",
    "Grouped",
    "NotAllowed",
    "RowFailed",
    "SchemaRegistry",
    "StateFailed",
    "Stores",
    "Stream",
    "Table",
    "agg",
    "all_horizontal",
    "any_horizontal",
    "arrow",
    "at_most_every",
    "avro",
    "bytes",
    "coalesce",
    "cogroup",
    "col",
    "concat_str",
    "counting",
    "custom",
    "hopping",
    "json",
    "lit",
    "protobuf",
    "session",
    "sliding",
    "string",
    "struct",
    "ttl",
    "tumbling",
    "value",
    "versioned",
    "when",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'headrace_streams' has no attribute {name!r}")
    module = importlib.import_module(home.removesuffix(":"))
    value = module if home.endswith(":") else getattr(module, name)
    globals()[name] = value
    return value
