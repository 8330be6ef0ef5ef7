"""Where positions of the source are at the target, beside an oracle that looks at every record."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.records import TopicPartition
from headrace_connect.connectors.copying.syncs import Run, Sync, decode, decode_key, encode, encode_key, find_runs
from headrace_connect.connectors.copying.translating import History, NotCopiedYet, NoTranslation

GAPS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans()), max_size=12)
"""Of each record: offsets without one before it in the source, in the target, and whether it is copied."""


@st.composite
def copies(draw: st.DrawFn) -> tuple[list[Sync], dict[int, int], int, int]:
    """Syncs as transactions write them, source offset -> target offset of what was copied, the base, and the end."""
    base = draw(st.integers(0, 5))
    source, target, syncs, where = 0, base, [], {}
    for number, rows in enumerate(draw(st.lists(GAPS, min_size=1, max_size=5))):
        start, sources, targets = source, [], []
        for source_gap, target_gap, copied in rows:
            source += source_gap
            if copied:
                target += target_gap
                sources.append(source)
                targets.append(target)
                target += 1
            source += 1
        source += draw(st.integers(0, 2))
        where.update(zip(sources, targets, strict=True))
        runs = find_runs(np.array(sources, np.int64), np.array(targets, np.int64))
        syncs.append(Sync(number * 3, "id", "copy", base, start, source, runs))
        target += 1  # the marker
    return syncs, where, base, source


@given(copies(), st.randoms())
def test_every_position_is_translated_exactly(
    given: tuple[list[Sync], dict[int, int], int, int], chance: object
) -> None:
    syncs, where, base, end = given
    shuffled = sorted(syncs, key=lambda _: chance.random())  # type: ignore[attr-defined]
    history = History([one for sync in shuffled if (one := decode(encode(sync))) is not None])
    assert history.copied == end
    for position in range(end + 1):
        behind = [target for source, target in where.items() if source >= position]
        before = [target for source, target in where.items() if source < position]
        wanted = min(behind) if behind else max(before) + 1 if before else base
        assert history.translate(position) == wanted
    with pytest.raises(NotCopiedYet, match=f"offset {end + 1} was not copied yet"):
        history.translate(end + 1)


@given(copies())
def test_runs_are_as_few_as_can_be_and_come_back(given: tuple[list[Sync], dict[int, int], int, int]) -> None:
    syncs, where, _, _ = given
    for sync in syncs:
        assert decode(encode(sync)) == sync
        for one, following in zip(sync.runs, sync.runs[1:], strict=False):
            assert (one.source + one.count, one.target + one.count) != (following.source, following.target)
    said = {run.source + n: run.target + n for sync in syncs for run in sync.runs for n in range(run.count)}
    assert said == where


def sync(number: int, start: int, end: int, *runs: Run, topic_id: str = "id", base: int = 0) -> Sync:
    return Sync(number, topic_id, "copy", base, start, end, runs)


def test_what_was_forgotten_is_refused() -> None:
    # keys came round: the sync from 10 to 20 is gone, and an older one is still there
    history = History([sync(1, 0, 10, Run(0, 0, 10)), sync(103, 20, 30, Run(20, 22, 10))])
    assert history.translate(20) == 22
    for position in (0, 19):
        with pytest.raises(NoTranslation, match="begins at 20"):
            history.translate(position)


def test_the_end_of_a_partition_whose_last_copy_was_forgotten_is_refused() -> None:
    with pytest.raises(NoTranslation, match="is at the end"):
        History([sync(200, 40, 41)]).translate(41)
    assert History([sync(1, 0, 41, base=7)]).translate(41) == 7


def test_a_topic_that_was_made_again_has_positions_of_its_own() -> None:
    old, new = sync(1, 0, 50, Run(0, 0, 50)), sync(2, 0, 5, Run(0, 60, 5), topic_id="new", base=55)
    history = History([old, new])
    assert (history.copied, history.topic_id, history.translate(0), history.translate(5)) == (5, "new", 60, 65)
    nothing = History([old, sync(2, 0, 5, topic_id="new", base=55)])
    assert [nothing.translate(at) for at in (0, 5)] == [55, 55]


def test_a_source_that_lost_its_end_is_read_again_from_there() -> None:
    history = History([sync(1, 0, 50, Run(0, 0, 50)), sync(2, 40, 60, Run(40, 51, 20))])
    assert [history.translate(at) for at in (39, 40, 50, 60)] == [39, 51, 61, 71]


def test_nothing_is_known_of_a_partition_that_is_not_copied() -> None:
    history = History([])
    assert (history.copied, history.topic_id, history.target) == (0, None, None)
    with pytest.raises(NotCopiedYet):
        history.translate(0)


def test_keys_come_round() -> None:
    at = TopicPartition("orders", 3)
    assert [decode_key(encode_key(at, number, 100)) for number in (0, 99)] == [at, at]
    assert encode_key(at, 5, 100) == encode_key(at, 105, 100) != encode_key(at, 6, 100)


def test_what_a_newer_version_has_written_is_left_alone() -> None:
    value = json.loads(encode(sync(1, 0, 10, Run(0, 0, 10))))
    assert decode(json.dumps(value | {"v": 2}).encode()) is None
