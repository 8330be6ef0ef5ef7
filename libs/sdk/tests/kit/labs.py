"""The fixture ``labs``, and the loop of the tests that use it: for a ``conftest.py`` to import."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing

import pytest
from libs.sdk.tests.kit.cluster import LabCluster, Labs

from headrace_lab.loop import LabLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests on a cluster of the lab run on its loop."""
    del config
    in_lab = "labs" in getattr(item, "fixturenames", ()) and item.get_closest_marker("real_time") is None
    return {"lab": lambda: LabLoop(7)} if in_lab else {"asyncio": asyncio.new_event_loop}


@pytest.fixture
def labs(request: pytest.FixtureRequest) -> Iterator[Labs]:
    """Makes clusters: in virtual time where the test is a coroutine, else on a thread."""
    loop = None
    if asyncio.iscoroutinefunction(request.function):
        loop = request.getfixturevalue("_function_scoped_runner").get_loop()
    loop = loop if isinstance(loop, LabLoop) else None
    with ExitStack() as made:
        yield lambda *args, **settings: made.enter_context(closing(LabCluster(*args, loop=loop, **settings)))
