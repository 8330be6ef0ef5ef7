"""Bytes of records to columns and back, under the names that users write."""

from headrace_streams.core.formats.arrow_format import arrow as arrow
from headrace_streams.core.formats.functions import custom as custom
from headrace_streams.core.formats.json_format import JsonFormat
from headrace_streams.core.formats.json_format import json as json
from headrace_streams.core.formats.plain import bytes as bytes
from headrace_streams.core.formats.plain import string as string


def struct(row_class: type) -> JsonFormat:
    """
    JSON with the fields of a dataclass or a pydantic model; record functions are given its instances.

    Raises:
        InvalidConfig: it is no such class, or a field has no column type.
    """
    return json(row_class)
