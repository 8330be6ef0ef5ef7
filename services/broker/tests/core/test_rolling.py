"""The rolling rule, by example, and against the sentence of the design written down naively."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_broker.core.rolling import Allowed, Blocked, may_restart
from headrace_common.core.configs import min_isr_in_force
from headrace_common.core.ids import NO_NODE, NodeId, PartitionId, TopicId
from headrace_common.core.image import EMPTY_IMAGE, ClusterImage, Partition, Topic, TopicDeletion

ME = NodeId(0)
TOPIC = TopicId(b"a" * 16)


def partition(
    number: int,
    isr: Sequence[int],
    replicas: Sequence[int] = (0, 1, 2),
    *,
    topic: TopicId = TOPIC,
    adding: Sequence[int] = (),
    removing: Sequence[int] = (),
) -> Partition:
    return Partition(
        PartitionId(topic, number),
        replicas=tuple(map(NodeId, replicas)),
        isr=tuple(map(NodeId, isr)),
        leader=NodeId(next(iter(isr), NO_NODE)),
        leader_epoch=1,
        partition_epoch=1,
        adding=tuple(map(NodeId, adding)),
        removing=tuple(map(NodeId, removing)),
    )


def image(*partitions: Partition, min_isr: int | None = None) -> ClusterImage:
    configs = {} if min_isr is None else {"min.insync.replicas": str(min_isr)}
    topics = [Topic("t", TOPIC, len(partitions), configs)]
    return replace(EMPTY_IMAGE, topics={t.topic_id: t for t in topics}, partitions={p.id: p for p in partitions})


def ids(*numbers: int) -> tuple[PartitionId, ...]:
    return tuple(PartitionId(TOPIC, number) for number in numbers)


@pytest.mark.parametrize(
    ("isr", "verdict"),
    [
        ([0, 1, 2], Allowed()),  # two stay
        ([0, 1], Blocked(ids(0))),  # one would stay, of two
        ([1, 2], Allowed()),  # nothing is taken away
        ([1], Blocked(ids(0))),  # this one is needed, and may be catching up
        ([0], Blocked(ids(0))),
        ([], Blocked(ids(0))),
    ],
)
def test_three_replicas_of_which_two_must_be_in_sync(isr: list[int], verdict: Allowed | Blocked) -> None:
    assert may_restart(image(partition(0, isr)), ME) == verdict


def test_all_that_block_are_named_in_order() -> None:
    assert may_restart(image(partition(2, [0]), partition(1, [0, 1, 2]), partition(0, [1])), ME) == Blocked(ids(0, 2))


def test_too_few_replicas_are_told_and_do_not_block() -> None:
    single, pair = partition(0, [0], [0]), partition(1, [0, 1], [0, 1])
    assert may_restart(image(single, pair), ME) == Allowed(exposed=ids(0)), "of two, one must be in sync"
    assert may_restart(image(single, pair, min_isr=2), ME) == Allowed(exposed=ids(0, 1))
    assert may_restart(image(partition(0, [0, 1, 2]), min_isr=3), ME) == Allowed(exposed=ids(0))
    assert may_restart(image(partition(0, [], [0])), ME) == Allowed(), "offline already"


def test_two_replicas_and_one_must_be_in_sync() -> None:
    assert may_restart(image(partition(0, [0], [0, 1])), ME) == Blocked(ids(0))
    assert may_restart(image(partition(0, [1], [0, 1])), ME) == Allowed()


def test_the_topics_own_minimum_counts() -> None:
    assert may_restart(image(partition(0, [0, 1]), min_isr=1), ME) == Allowed()


def test_partitions_of_others_and_topics_that_go_do_not_count() -> None:
    assert may_restart(image(partition(0, [1], [1, 2, 3])), ME) == Allowed()
    going = image(partition(0, [0]))
    deletion = TopicDeletion(TOPIC, "t", (ME,))
    assert may_restart(replace(going, deletions={TOPIC: deletion}), ME) == Allowed()
    assert may_restart(replace(going, topics={}), ME) == Allowed(), "not complete yet"
    assert may_restart(EMPTY_IMAGE, ME) == Allowed()


def test_while_replicas_are_exchanged_the_fewer_count() -> None:
    grown = partition(0, [0, 1], [0, 1, 2, 3, 4], adding=[3, 4], removing=[0, 1])
    assert may_restart(image(grown), ME) == Blocked(ids(0))
    single = partition(0, [0], [0, 1], adding=[1])
    assert may_restart(image(single), ME) == Allowed(exposed=ids(0)), "there was only one replica"


@st.composite
def partitions(draw: st.DrawFn) -> Partition:
    replicas = draw(st.lists(st.integers(0, 5), min_size=1, max_size=5, unique=True))
    isr = draw(st.lists(st.sampled_from(replicas), unique=True))
    moving = draw(st.lists(st.sampled_from(replicas), unique=True, max_size=len(replicas) - 1))
    cut = draw(st.integers(0, len(moving)))
    topic = draw(st.sampled_from([TOPIC, TopicId(b"b" * 16), TopicId(b"c" * 16)]))
    number = draw(st.integers(0, 5))
    return partition(number, isr, replicas, topic=topic, adding=moving[:cut], removing=moving[cut:])


@given(
    st.lists(partitions(), max_size=6, unique_by=lambda p: p.id),
    st.sampled_from([None, 1, 2, 3, 7]),
    st.booleans(),
)
def test_it_is_the_sentence_of_the_design(some: list[Partition], own: int | None, deleted: bool) -> None:
    """A broker may restart iff for each of its partitions not (ISR < min) and not (ISR = min and it is in the ISR)."""
    other = TopicId(b"b" * 16)
    given_image = image(*some, min_isr=own)
    topics = {**given_image.topics, other: Topic("b", other, 6)}  # that of c is not there yet
    deletions = {other: TopicDeletion(other, "b", (ME,))} if deleted else {}
    now = replace(given_image, topics=topics, deletions=deletions)
    blocking, exposed = set(), set()
    for p in some:
        if p.id.topic_id == TopicId(b"c" * 16) or (deleted and p.id.topic_id == other) or ME not in p.replicas:
            continue
        mine = own if p.id.topic_id == TOPIC else None
        need = min_isr_in_force(mine, len(p.replicas), adding=len(p.adding), removing=len(p.removing))
        if len(p.replicas) - max(len(p.adding), len(p.removing)) <= need:
            exposed |= {p.id} if ME in p.isr else set()
        elif len(p.isr) < need or (len(p.isr) == need and ME in p.isr):
            blocking.add(p.id)
        else:
            assert len(set(p.isr) - {ME}) >= need, "what is allowed leaves enough"
    verdict = may_restart(now, ME)
    assert verdict == (Blocked(tuple(sorted(blocking))) if blocking else Allowed(tuple(sorted(exposed))))
