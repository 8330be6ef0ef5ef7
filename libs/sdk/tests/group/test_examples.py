"""The examples about groups, as they stand in the documentation, against a cluster in memory."""

from __future__ import annotations

import doctest
import importlib
from collections.abc import Iterator

import pytest
from libs.sdk.tests.kit.cluster import LabCluster, Labs

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
MODULES = ["headrace._group_calls", "headrace.aio._group_calls", "headrace.aio._transactional"]


@pytest.fixture
def memory(labs: Labs, monkeypatch: pytest.MonkeyPatch) -> Iterator[LabCluster]:
    """Every client connects to this."""
    backend = labs()
    backend.create_topic("orders", 1)
    backend.create_topic("invoices", 1)
    backend.create_topic("flights", 2)
    backend.lead_here(monkeypatch)
    yield backend
    assert not backend.all_members(), "examples close what they open"


def run(example: doctest.DocTest) -> None:
    outcome = doctest.DocTestRunner(optionflags=FLAGS).run(example)
    assert outcome.attempted
    assert not outcome.failed


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_of_the_calls_do_what_they_say(memory: LabCluster, module: str) -> None:
    with memory.producer() as producer:
        for n in range(4):
            producer.send("flights", b"flight %d" % n, partition=n % 2)
        producer.flush()
    found = [test for test in doctest.DocTestFinder().find(importlib.import_module(module)) if test.examples]
    assert found
    for example in found:
        run(example)
