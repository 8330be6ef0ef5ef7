"""The examples of the public modules are run as they stand, each against a broker of its own."""

from __future__ import annotations

import asyncio
import doctest
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from libs.sdk.tests.kit.broker_thread import BrokerThread

from headrace import Producer, aio

MODULES = [
    "headrace.errors",
    "headrace.records",
    "headrace.settings",
    "headrace.setting_types",
    "headrace.serializers",
    "headrace.delivery",
    "headrace._bulk_calls",
    "headrace._fence_calls",
    "headrace.aio._fence_calls",
    "headrace.producer",
    "headrace.aio.producer",
]
README = Path(__file__).parents[2] / "README.md"
FLAGS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL


def examples() -> Iterator[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    for name in MODULES:
        for test in finder.find(importlib.import_module(name)):
            if test.examples:
                yield test


@pytest.mark.parametrize("example", list(examples()), ids=lambda test: test.name)
def test_the_example_does_what_it_says(example: doctest.DocTest) -> None:
    _run(example)


def test_the_readme_does_what_it_says() -> None:
    _run(doctest.DocTestParser().get_doctest(README.read_text(), {}, "README.md", str(README), 0))


def _run(example: doctest.DocTest) -> None:
    broker = BrokerThread({"flights": 1})
    try:
        with Producer(broker.address, linger_ms=0) as producer:
            example.globs.update(producer=producer, bootstrap=broker.address, asyncio=asyncio, aio=aio)
            outcome = doctest.DocTestRunner(optionflags=FLAGS).run(example)
    finally:
        broker.stop()
    assert outcome.attempted
    assert not outcome.failed
