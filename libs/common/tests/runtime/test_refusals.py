"""A refusal that ends a process is one line that says why; only a bug gets a traceback."""

from __future__ import annotations

import asyncio
import logging

import pytest

from headrace_common.core.errors import InconsistentClusterId
from headrace_common.runtime.tasks import TaskRunner


@pytest.mark.parametrize(
    ("error", "traceback"), [(InconsistentClusterId("the data are of cluster x"), False), (ZeroDivisionError(), True)]
)
async def test_what_ends_a_process_is_told(caplog: pytest.LogCaptureFixture, error: Exception, traceback: bool) -> None:
    async def fails() -> None:
        raise error

    runner = TaskRunner()
    with caplog.at_level(logging.CRITICAL):
        runner.start(fails(), name="joining")
        await asyncio.wait_for(runner.failed.wait(), 10)
    (record,) = caplog.records
    assert (record.exc_info is not None) is traceback
    assert str(error) in record.getMessage()
    assert runner.failure is error
    await runner.close()
