"""
Values as JSON objects, read by Spark's own functions; each row gets its fields, or the reason why it has none.

Spark's parser is kinder than a lake may be: it stops reading behind the first object, so that two objects in one value
become one row, and takes quotes and numbers that JSON does not have. Called by the transforms of the jobs.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import BooleanType, DoubleType, FloatType, StringType, StructField, StructType

from headrace_common.core.errors import InvalidConfig

FIELDS: Final = "_fields"
"""The column with the struct of fields; null where there is a reason."""
REASON: Final = "_reason"
_PARSED: Final = "_parsed"
_MALFORMED: Final = "_malformed"
_VALUE: Final = "value"
_END: Final = "\u200bend"
"""
Stands behind the value: what is not read up to here was more, or less, than one JSON value. And a value that ends the
object around it, to go on with members of its own, is told by the keys of that object.
"""
_OPTIONS: Final = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _MALFORMED,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    "timeZone": "UTC",
}

NO_VALUE: Final = "the record has no value"
NOT_UTF8: Final = "the value is not UTF-8"
NOT_JSON: Final = "the value is not one JSON value"
NOT_AN_OBJECT: Final = "the value is not a JSON object"
NOT_FITTING: Final = "a field is damaged, or not of the schema's type"


def with_fields(
    records: DataFrame, schema: StructType, *, value: str = "value", timestamp_format: str | None = None
) -> DataFrame:
    """
    Add the columns ``_fields``, a struct of ``schema``, and ``_reason``, text: one of them is null in each row.

    Args:
        schema: fields that are not nullable must be there and not null.
        value: the column with the values, binary or string.
        timestamp_format: Spark's pattern for fields of type timestamp, if they are not ISO 8601.
    """
    text = fn.col(value).cast("string")
    wrapped = fn.concat(fn.lit(f'{{"{_VALUE}":'), text, fn.lit(f',"{_END}":true}}'))
    options = _OPTIONS | ({"timestampFormat": timestamp_format} if timestamp_format else {})
    parsed = records.withColumn(_PARSED, fn.from_json(wrapped, _wrap(schema), options))
    alone = fn.json_object_keys(wrapped) == fn.array(fn.lit(_VALUE), fn.lit(_END))
    return (
        parsed.withColumn(REASON, _reason(fn.col(value), alone, schema))
        .withColumn(FIELDS, fn.when(fn.col(REASON).isNull(), fn.col(f"{_PARSED}.{_VALUE}")))
        .drop(_PARSED)
    )


def check_fields(schema: StructType) -> None:
    """
    What cannot be the fields of a value.

    Raises:
        InvalidConfig: there are none, or two of the same name, for Spark's names have no case.
    """
    seen: set[str] = set()
    for name in schema.fieldNames():
        if name.lower() in seen:
            raise InvalidConfig(f"the schema has two fields {name!r}, as Spark sees no case; leave one out")
        seen.add(name.lower())
    if not seen:
        raise InvalidConfig("the schema has no fields; name at least one, as in 'id bigint, name string'")


def _wrap(schema: StructType) -> StructType:
    return StructType(
        [
            StructField(_VALUE, nullable(schema)),
            StructField(_END, BooleanType()),
            StructField(_MALFORMED, StringType()),
        ]
    )


def nullable(schema: StructType) -> StructType:
    """The same fields, all of them nullable."""
    return StructType([StructField(each.name, each.dataType, True, each.metadata) for each in schema.fields])


def _reason(value: Column, alone: Column, schema: StructType) -> Column:
    parsed = fn.col(_PARSED)
    found = (
        fn.when(value.isNull(), fn.lit(NO_VALUE))
        .when(~fn.is_valid_utf8(value.cast("string")), fn.lit(NOT_UTF8))
        .when(~fn.coalesce(parsed[_END] & alone, fn.lit(False)), fn.lit(NOT_JSON))
        .when(parsed[_VALUE].isNull(), fn.lit(NOT_AN_OBJECT))
        .when(parsed[_MALFORMED].isNotNull(), fn.lit(NOT_FITTING))
    )
    for each in schema.fields:
        if isinstance(each.dataType, DoubleType | FloatType):  # a number beyond the type, as infinity itself is no JSON
            found = found.when(fn.abs(parsed[_VALUE][each.name]) == fn.lit(float("inf")), fn.lit(NOT_FITTING))
        if not each.nullable:
            found = found.when(parsed[_VALUE][each.name].isNull(), fn.lit(f"field {each.name} is missing or null"))
    return found
