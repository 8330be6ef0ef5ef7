"""A topic that is subscribed to and deleted is told: a warning, a state, and health that is not ok."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
from libs.sdk.tests.kit.cluster import LabCluster, Labs

from headrace import Consumer
from headrace.errors import HeadraceError

PATIENCE_S = 20


@pytest.fixture(params=[None, "consumer", "classic"])
def consumer(request: pytest.FixtureRequest, memory: LabCluster) -> Iterator[Consumer]:
    group = (
        {} if request.param is None else {"group_id": "g", "group_protocol": request.param, "enable_auto_commit": False}
    )
    with memory.consumer("t", "u", retry_backoff_ms=10, metadata_max_age_ms=100, **group) as made:
        yield made


@pytest.fixture
def memory(labs: Labs) -> LabCluster:
    backend = labs()
    backend.create_topic("t", 2)
    backend.create_topic("u", 1)
    return backend


def until(consumer: Consumer, state: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while consumer.state != state:
        with contextlib.suppress(HeadraceError):  # what cannot be read may be raised meanwhile
            consumer.poll(timeout_ms=10)
        assert time.monotonic() < deadline, consumer.state


def test_a_deleted_topic_is_warned_of_and_is_a_state(
    consumer: Consumer, memory: LabCluster, caplog: pytest.LogCaptureFixture
) -> None:
    until(consumer, "reading")
    assert consumer.health().ok
    memory.delete_topic("t")
    until(consumer, "topic_deleted")
    assert not consumer.health().ok
    assert len([r for r in caplog.records if "topic 't', which is subscribed to, was deleted" in r.message]) == 1
    consumer.unsubscribe()
    assert consumer.state == "idle"


def test_who_reads_nothing_any_more_hears_no_more_of_it_at_once(
    memory: LabCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with memory.consumer("t", "u", retry_backoff_ms=10, metadata_max_age_ms=100) as consumer:
        until(consumer, "reading")
        memory.delete_topic("t")
        until(consumer, "topic_deleted")
        monkeypatch.setattr(consumer._reading, "_look_for_deleted", lambda: None)  # no metadata comes meanwhile
        consumer.unsubscribe()
        assert consumer.state == "idle"


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_a_topic_that_a_pattern_matched_is_told_of_too(
    protocol: str, memory: LabCluster, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"group_id": "g", "group_protocol": protocol, "enable_auto_commit": False}
    with memory.consumer(retry_backoff_ms=10, metadata_max_age_ms=100, **settings) as consumer:
        consumer.subscribe(pattern="[tu]")
        until(consumer, "reading")
        deadline = time.monotonic() + PATIENCE_S
        while {tp.topic for tp in consumer.assignment()} != {"t", "u"}:
            consumer.poll(timeout_ms=10)
            assert time.monotonic() < deadline
        memory.delete_topic("t")
        until(consumer, "topic_deleted")
        assert len([r for r in caplog.records if "topic 't', which is subscribed to, was deleted" in r.message]) == 1
        memory.create_topic("t", 2)
        until(consumer, "reading")
        consumer.unsubscribe()
        assert consumer.state == "idle"
