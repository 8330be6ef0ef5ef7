"""Whatever is written, and wherever the log is cut or compacted: whoever reads it comes to the same."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_connect_worker.core import changes
from headrace_connect_worker.core.encoding import decode_config, encode
from headrace_connect_worker.core.herd import HerdState
from headrace_connect_worker.core.placing import declaration_of, list_items
from headrace_connect_worker.core.records import ConfigRecord, LeaderSaid, TargetState

from .herds import HerdTopic, look

NAMES = st.sampled_from(["a", "b", "a-1"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), NAMES, st.integers(1, 3)),
        st.tuples(st.just("find"), NAMES, st.sets(st.sampled_from("vwxyz"))),
        st.tuples(st.just("sink"), NAMES, st.integers(1, 4)),
        st.tuples(st.just("plan"), NAMES, st.booleans()),
        st.tuples(st.just("target"), NAMES, st.sampled_from(list(TargetState))),
        st.tuples(st.just("delete"), NAMES, st.none()),
        st.tuples(st.just("restart"), NAMES, st.booleans()),
        st.tuples(st.just("lead"), NAMES, st.integers(1, 9)),
    ),
    max_size=25,
)


def carry_out(herd: HerdTopic, step: tuple[str, str, object]) -> None:
    match step:
        case ("put", name, most):
            herd.put(name, tasks_max=str(most))
        case ("lead", _, epoch) if isinstance(epoch, int):
            herd.write([LeaderSaid("w:1", "http://w:1", epoch)])
        case (_, name, _) if name not in herd.state.connectors:
            return
        case ("find", name, splits) if isinstance(splits, set):
            herd.find(*sorted(splits), name=name)
        case ("sink", name, tasks) if isinstance(tasks, int):
            herd.find_sink(tasks, name)
        case ("plan", name, fenced):
            herd.plan(name, fenced=bool(fenced))
        case ("target", name, target) if isinstance(target, TargetState):
            herd.target(target, name)
        case ("delete", name, _):
            herd.delete(name)
        case ("restart", name, only_failed):
            herd.write(changes.restart(herd.state, name, connector=True, tasks=None, only_failed=bool(only_failed)))


def read(records: list[tuple[int, ConfigRecord]]) -> HerdState:
    state = HerdState()
    for offset, record in records:
        state.apply(offset, record)
    return state


def compacted(records: list[tuple[int, ConfigRecord]], upto: int) -> list[tuple[int, ConfigRecord]]:
    """As a broker compacts the first ``upto``: of each key the last record of the log is kept."""
    last = {encode(record)[0]: offset for offset, record in records}
    return [one for number, one in enumerate(records) if number >= upto or last[encode(one[1])[0]] == one[0]]


@settings(max_examples=150, deadline=None)
@given(STEPS, st.data())
def test_a_log_that_is_cut_and_compacted_anywhere_replays_to_the_same(
    steps: list[tuple[str, str, object]], data: st.DataObject
) -> None:
    herd = HerdTopic()
    for step in steps:
        carry_out(herd, step)
    wire = []
    for offset, record in herd.log:
        decoded = decode_config(*encode(record))
        assert decoded == record
        wire.append((offset, decoded))
    whole = look(read(wire))
    assert whole == look(herd.state)
    upto = data.draw(st.integers(0, len(wire)))
    assert look(read(compacted(wire, upto))) == whole
    assert list_items(read(compacted(wire, upto))) == list_items(herd.state)
    at = data.draw(st.sampled_from([0, *herd.ends]))
    state = read(wire[:at])
    for name, connector in state.connectors.items():
        if connector.tasks is not None:
            numbers = list(state.task_numbers(name))
            assert numbers == list(range(len(connector.tasks.shares))), "whole transactions leave nothing behind"
    for offset, record in wire[at:]:
        state.apply(offset, record)
    assert look(state) == whole


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_generations_only_grow_and_splits_are_nobodys_or_one_tasks(steps: list[tuple[str, str, object]]) -> None:
    herd = HerdTopic()
    seen: dict[str, int] = {}
    versions: dict[int, object] = {}
    for step in steps:
        carry_out(herd, step)
        for name, connector in herd.state.connectors.items():
            if connector.tasks is None:
                continue
            assert connector.tasks.generation >= seen.get(name, 0)
            seen[name] = connector.tasks.generation
            ids = [split.id for share in connector.tasks.shares for split in share]
            assert len(ids) == len(set(ids))
            sizes = [len(share) for share in connector.tasks.shares]
            assert max(sizes, default=0) - min(sizes, default=0) <= 1
        items = list_items(herd.state)
        declaration = declaration_of(herd.state, items)
        assert declaration.version is not None
        assert versions.setdefault(declaration.version, items) == items, "a version is one declaration"
