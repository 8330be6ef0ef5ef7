"""Programs that read topics, keep state and write topics: `headrace.streams` is this package."""

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
