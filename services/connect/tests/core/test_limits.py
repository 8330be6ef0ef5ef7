"""A Connect cluster that is as large as it may be: what a worker reads at its start, and what is refused then."""

from __future__ import annotations

import time

import pytest

from headrace_connect_worker.core.changes import CONNECTORS_MAX, TASKS_MAX
from headrace_connect_worker.core.encoding import decode_config, encode
from headrace_connect_worker.core.herd import HerdState
from headrace_connect_worker.core.placing import declaration_of, list_items
from headrace_connect_worker.core.refusals import BadCommand

from .herds import HerdTopic, look

EACH = TASKS_MAX // CONNECTORS_MAX
READ_S_MAX = 2.0
"""Of CPU; it takes 0.2. Whatever grew with the square of the records would take longer."""


@pytest.fixture(scope="module")
def full() -> HerdTopic:
    herd = HerdTopic()
    for number in range(CONNECTORS_MAX):
        name = f"c{number}"
        herd.put(name, tasks_max=str(EACH))
        herd.find(*(f"s{split}" for split in range(EACH)), name=name)
        herd.plan(name)
    return herd


def test_a_full_log_is_read_whole_at_a_start(full: HerdTopic) -> None:
    raw = [(offset, encode(record)) for offset, record in full.log]
    begun = time.process_time()
    state = HerdState()
    for offset, (key, value) in raw:
        record = decode_config(key, value)
        assert record is not None
        state.apply(offset, record)
    items = list_items(state)
    declaration_of(state, items)
    assert time.process_time() - begun < READ_S_MAX
    assert look(state) == look(full.state)
    assert state.places == TASKS_MAX
    assert len(set(items)) == 1 + CONNECTORS_MAX + TASKS_MAX


def test_one_connector_more_is_refused(full: HerdTopic) -> None:
    with pytest.raises(BadCommand, match=f"{CONNECTORS_MAX} is the most"):
        full.put("one-more")


def test_one_task_more_is_not_made(full: HerdTopic) -> None:
    name = "c0"
    full.put(name, tasks_max=str(EACH + 1))
    full.find(*(f"s{split}" for split in range(EACH + 1)), name=name)
    full.plan(name)
    shares = full.shares(name)
    assert shares is not None
    assert len(shares) == EACH
    assert sum(map(len, shares)) == EACH + 1, "a task has two of them"
    assert full.state.places == TASKS_MAX
