"""The schema that a user gives with ``--schema`` or ``--schema-file``. Called by each job's ``job``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from headrace_common.core.errors import InvalidConfig
from headrace_jobs.schemas import schema_of_json
from headrace_jobs.session import reason


def read_schema(spark: SparkSession, ddl: str | None, file: str | None) -> StructType:
    """
    Read it; a file is one of the driver's machine.

    Raises:
        InvalidConfig: it is no schema, or cannot be read.
    """
    if file is not None:
        try:
            ddl = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidConfig(f"--schema-file {file} cannot be read: {error}") from None
        found = schema_of_json(ddl)
        if found is not None:
            return found
    assert ddl is not None, "the caller has looked"
    return _of_ddl(spark, ddl)


def _of_ddl(spark: SparkSession, ddl: str) -> StructType:
    session: Any = spark._jsparkSession
    try:
        parsed = session.sessionState().sqlParser().parseTableSchema(ddl.strip())
    except PySparkException as error:
        raise InvalidConfig(f"the schema is no DDL, as 'id bigint NOT NULL, name string' is: {reason(error)}") from None
    return StructType.fromJson(json.loads(parsed.json()))
