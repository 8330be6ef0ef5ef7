"""The examples of the consumer's documentation, as they stand there, against a real broker."""

from __future__ import annotations

import doctest
import importlib
from collections.abc import Iterator

import pytest
from libs.sdk.tests.kit.broker_thread import BrokerThread

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
VALUES = [b"JFK-LAX", b"EWR-ORD", b"LGA-MIA", b"JFK-SFO"]


@pytest.fixture
def flights(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    broker = BrokerThread({"flights": 1})
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", broker.address)
    times = [1_700_000_000_000 + 1000 * n for n in range(4)]
    broker.append("flights", 0, VALUES, keys=[b"AA", b"UA", b"AA", b"B6"], timestamps_ms=times)
    yield
    broker.stop()


@pytest.mark.parametrize(
    "module",
    [
        "headrace.consumer",
        "headrace.aio.consumer",
        "headrace.consumer_settings",
        "headrace.log_watch",
        "headrace.range_reader",
        "headrace_lab.memory",
    ],
)
@pytest.mark.usefixtures("flights")
def test_examples_do_what_they_say(module: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(module), optionflags=FLAGS)
    assert tried, "there are examples"
    assert not failed
