from __future__ import annotations

from collections.abc import Iterator

import pytest
from libs.sdk.tests.kit.broker_thread import BrokerThread


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    """Topics ``t`` (2 partitions), ``one`` (1) and ``wide`` (20), all empty."""
    thread = BrokerThread({"t": 2, "one": 1, "wide": 20})
    yield thread
    thread.stop()
