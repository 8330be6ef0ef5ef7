"""What becomes of an open transaction, for whatever leaders and coordinators say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace_admin.core.transactions import (
    LIVE,
    Found,
    OpenTransaction,
    Owner,
    Standing,
    TxnState,
    first_of_each,
    judge,
    worst_first,
)
from headrace_common.core.ids import TopicPartition

NOW_MS = 1_000_000
TIMEOUT_MS = 1_000
PLACES = [TopicPartition("t", n) for n in range(3)]

founds = st.builds(
    Found,
    partition=st.sampled_from(PLACES),
    producer_id=st.integers(0, 3),
    producer_epoch=st.integers(0, 3),
    first_offset=st.integers(0, 9),
    since_ms=st.integers(NOW_MS - 2 * TIMEOUT_MS, NOW_MS + 10),
    written_ms=st.integers(NOW_MS - 2 * TIMEOUT_MS, NOW_MS + 10),
    high_watermark=st.integers(0, 20),
)
owners = st.none() | st.builds(
    Owner,
    transactional_id=st.just("pay"),
    state=st.sampled_from(TxnState),
    started_at_ms=st.none() | st.integers(NOW_MS - 3 * TIMEOUT_MS, NOW_MS),
    partitions=st.none() | st.frozensets(st.sampled_from(PLACES)),
)


def judged(found: Found, owner: Owner | None, whole: bool) -> OpenTransaction:
    return judge(found, owner, whole=whole, now_ms=NOW_MS, timeout_ms=TIMEOUT_MS)


@given(founds, owners, st.booleans())
def test_only_what_is_old_and_known_to_be_nobodys_hangs(found: Found, owner: Owner | None, whole: bool) -> None:
    said = judged(found, owner, whole).standing
    old = NOW_MS - found.since_ms >= TIMEOUT_MS
    lives = owner is not None and owner.state in LIVE
    told = lives and (owner.partitions is None or found.partition in owner.partitions)
    assert (said is Standing.COORDINATED) == told
    if said is Standing.HANGING:
        assert old
        assert whole or owner is not None, "somebody who did not answer might know it"
    if said is Standing.YOUNG:
        assert not old
    if said is Standing.UNKNOWN:
        assert (old, whole, owner) == (True, False, None)


@given(founds, owners, st.booleans())
def test_it_is_open_since_its_first_write_anywhere_and_holds_back_what_follows(
    found: Found, owner: Owner | None, whole: bool
) -> None:
    one = judged(found, owner, whole)
    assert one.since_ms <= found.since_ms
    assert one.held_back == max(0, found.high_watermark - found.first_offset)
    if owner is None or owner.state not in LIVE:
        assert one.since_ms == found.since_ms, "what the id does now is another transaction, or none"


@given(st.lists(st.tuples(founds, owners, st.booleans())))
def test_readers_wait_for_the_first_of_each_partition_and_the_worst_is_said_first(
    all_of_them: list[tuple[Found, Owner | None, bool]],
) -> None:
    several = [judged(*one) for one in all_of_them]
    first = first_of_each(several)
    assert {t.partition for t in first} == {t.partition for t in several}
    assert len({t.partition for t in first}) == len(first)
    for t in first:
        assert all(t.first_offset <= other.first_offset for other in several if other.partition == t.partition)
    ordered = worst_first(first)
    hangs = [t.standing is Standing.HANGING for t in ordered]
    assert hangs == sorted(hangs, reverse=True)
