"""What a job says when Spark fails: the reason, and not the stacks of four processes."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from headrace_jobs.session import reason

OURS = (
    "[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Traceback "
    "(most recent call last):\n  File x\nheadrace_common.core.errors.DataLost: 2 records are lost; set failOnDataLoss\n"
    "\n=== Streaming Query ===\nIdentifier: …"
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (OURS, "2 records are lost; set failOnDataLoss"),
        ("[X] no column y; line 1 pos 0\n=== Streaming Query ===\nplan", "[X] no column y; line 1 pos 0"),
        ("java.io.IOException: disk is full\n\tat a.b.C(C.java:1)", "java.io.IOException: disk is full"),
        ("plain", "plain"),
    ],
)
def test_the_reason_alone(text: str, said: str) -> None:
    assert reason(PySparkException(message=text)) == said
