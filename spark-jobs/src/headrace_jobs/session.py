"""
The Spark session of a job, and how it ends. Called by each job's ``job``.

Master, name and resources are whatever ``spark-submit`` says. A job sets what its result depends on, and that only
where nobody else did: times in UTC, timestamps in Parquet as other readers know them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import SparkSession

from headrace_common.core.errors import HeadraceError, InvalidConfig

_WANTED: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
_JAVA_ERROR: Final[Any] = import_module("py4j.protocol").Py4JJavaError
"""What the JVM raises beside Spark's own errors; the package has no types."""
_STACK: Final = re.compile(r"\n\s*(?:JVM stacktrace|at |=== Streaming Query ===|Traceback)")
_TEXT_MAX: Final = 2_000
_OURS: Final = re.compile(r"headrace_common\.core\.errors\.\w+: ([^\n]+)")


class JobFailed(HeadraceError):
    """Spark ended the job's query."""


@contextmanager
def job_session() -> Iterator[SparkSession]:
    """
    The session to use; it is stopped at the end if it was made here.

    Raises:
        InvalidConfig: an expression or a schema that the user gave does not fit.
        JobFailed: Spark failed; the text is the part of its message that says why.
    """
    found = SparkSession.getActiveSession()
    spark = found or SparkSession.builder.getOrCreate()
    given = spark.sparkContext.getConf()
    for name, value in _WANTED.items():
        if not given.contains(name):
            spark.conf.set(name, value)
    try:
        yield spark
    except (AnalysisException, ParseException) as error:
        raise InvalidConfig(reason(error)) from error
    except PySparkException as error:
        raise JobFailed(reason(error)) from error
    except _JAVA_ERROR as error:
        raise JobFailed(str(error.java_exception.toString())[:_TEXT_MAX]) from error
    finally:
        if found is None:
            spark.stop()


def reason(error: PySparkException) -> str:
    """What Spark says, without the stacks of its processes; our own error where it carries one."""
    text = str(error)
    ours = _OURS.findall(text)
    return str(ours[-1] if ours else _STACK.split(text, maxsplit=1)[0])[:_TEXT_MAX].strip()
