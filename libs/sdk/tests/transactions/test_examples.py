"""The examples about transactions, as they stand in the documentation, against a cluster in memory."""

from __future__ import annotations

import doctest
import importlib
from collections.abc import Iterator

import pytest
from libs.sdk.tests.kit.cluster import LabCluster, Labs

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
TOPICS = ("flights", "board", "invoices", "receipts", "payments", "parts")


@pytest.fixture(autouse=True)
def memory(labs: Labs, monkeypatch: pytest.MonkeyPatch) -> Iterator[LabCluster]:
    """Every client connects to this."""
    backend = labs()
    for topic in TOPICS:
        backend.create_topic(topic, 1)
    backend.lead_here(monkeypatch)
    yield backend
    assert not any(backend.log(topic).undecided for topic in TOPICS), "examples end what they begin"


def run(example: doctest.DocTest) -> None:
    outcome = doctest.DocTestRunner(optionflags=FLAGS).run(example)
    assert outcome.attempted
    assert not outcome.failed


@pytest.mark.parametrize("module", ["headrace._transaction_calls", "headrace.transactions"])
def test_the_examples_of_the_calls_do_what_they_say(module: str) -> None:
    found = [test for test in doctest.DocTestFinder().find(importlib.import_module(module)) if test.examples]
    assert found
    for example in found:
        example.globs["bootstrap"] = "127.0.0.1:1"
        run(example)


def test_the_asyncio_example_does_what_it_says(memory: LabCluster) -> None:
    with memory.producer() as producer:
        producer.send("flights", b"UA 1545 departed").result(timeout=10)
    for example in doctest.DocTestFinder().find(importlib.import_module("headrace.aio._transaction_calls")):
        if example.examples:
            example.globs["bootstrap"] = "127.0.0.1:1"
            run(example)
            return
    raise AssertionError("there is one")
