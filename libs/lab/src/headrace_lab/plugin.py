"""The pytest plugin: the fixture ``headrace_lab``, and a loop for tests that use it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headrace_lab.cluster import Cluster


@pytest.fixture
def headrace_lab() -> Callable[..., AbstractAsyncContextManager[Cluster]]:
    """``async with headrace_lab(brokers=3) as cluster``: see ``headrace.testing.lab``."""
    from headrace_lab.testing import lab

    return lab


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine function with the fixture where no other plugin does."""
    test = pyfuncitem.obj
    if "headrace_lab" not in pyfuncitem.fixturenames or not inspect.iscoroutinefunction(test):
        return None
    asyncio.run(test(**{name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}))
    return True
