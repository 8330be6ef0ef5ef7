"""Who is told the end of a transaction, when, and when again: dialogues, and a property over disturbed worlds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from services.coordinator.tests.kit.ports import topic_id_of

from headrace_common.core.errors import (
    HeadraceError,
    InvalidProducerEpoch,
    NetworkFailed,
    NotEnoughReplicas,
    NotLeader,
)
from headrace_common.core.ids import NO_NODE, Endpoint, NodeId, PartitionId
from headrace_common.core.image import (
    EMPTY_IMAGE,
    INTERNAL_TOPICS,
    ClusterImage,
    Node,
    NodeKey,
    Partition,
    Role,
    Shard,
    ShardKey,
    ShardKind,
    Topic,
    TopicDeletion,
)
from headrace_coordinator.engine.marker_plan import (
    PARTITIONS_PER_REQUEST,
    PAUSE_MS_FIRST,
    PAUSE_MS_MAX,
    REQUESTS_MAX,
    UNKNOWN_MS,
    AskRevision,
    Done,
    MarkerPlan,
    Send,
)
from headrace_coordinator.ports import Destination, Marker

T = topic_id_of("t")
GROUPS = topic_id_of(INTERNAL_TOPICS[ShardKind.GROUPS])
COMMIT = Marker(7, 1, commit=True)


def node(role: Role, number: int) -> Node:
    port = number if role is Role.BROKER else 100 + number
    return Node(NodeKey(role, NodeId(number)), Endpoint("h", port), bytes(16), number, fenced=False)


def broker(number: int) -> Destination:
    return Destination(Role.BROKER, Endpoint("h", number))


def coordinator(number: int) -> Destination:
    return Destination(Role.COORDINATOR, Endpoint("h", 100 + number))


def image(leaders: Sequence[int] = (1, 2, 1), *, groups_owner: int = 1, revision: int = 1) -> ClusterImage:
    """Topic ``t`` with these leaders; one shard of groups."""
    nodes = [node(Role.BROKER, n) for n in (1, 2)] + [node(Role.COORDINATOR, n) for n in (1, 2)]
    key = ShardKey(ShardKind.GROUPS, 0)
    return replace(
        EMPTY_IMAGE,
        revision=revision,
        nodes={one.key: one for one in nodes},
        topics={
            T: Topic("t", T, len(leaders)),
            GROUPS: Topic(INTERNAL_TOPICS[ShardKind.GROUPS], GROUPS, 1, internal=True),
        },
        partitions={
            PartitionId(T, n): Partition(PartitionId(T, n), (), (), NodeId(leader), revision, revision)
            for n, leader in enumerate(leaders)
        },
        shards={key: Shard(key, NodeId(groups_owner), revision)},
    )


class Host:
    """Nobody tells it anything here: the plan only says what to tell."""

    def markers_written(self, transactional_id: str, marker: Marker, partitions: Sequence[PartitionId]) -> None:
        raise AssertionError(f"{transactional_id}, {marker}, {partitions}")


@dataclass
class World:
    plan: MarkerPlan = field(default_factory=MarkerPlan)
    host: Host = field(default_factory=Host)
    now_ms: float = 0.0

    def __post_init__(self) -> None:
        self.plan.image_changed(image(), 0)

    def add(self, *numbers: int, id: str = "x", marker: Marker = COMMIT) -> list[Send]:
        self.plan.add(self.host, id, marker, partitions(*numbers), self.now_ms)
        return self.sends()

    def sends(self) -> list[Send]:
        effects = self.plan.pump(self.now_ms)
        assert all(isinstance(effect, Send) for effect in effects), effects
        return [effect for effect in effects if isinstance(effect, Send)]

    def says(self, request: Send, *errors: HeadraceError | None) -> list[Done | Send | AskRevision]:
        """The answer to a request with one marker."""
        ((_, ids),) = request.markers
        self.plan.answered(request.number, [errors or [None] * len(ids)], self.now_ms)
        return self.plan.pump(self.now_ms)

    def passes(self, ms: float) -> list[Done | Send | AskRevision]:
        self.now_ms += ms
        return self.plan.pump(self.now_ms)


def partitions(*numbers: int) -> tuple[PartitionId, ...]:
    return tuple(PartitionId(T, n) for n in numbers)


@pytest.fixture
def w() -> World:
    return World()


# --- who is told ------------------------------------------------------------------------------------------------


def test_each_leader_is_told_of_its_partitions_in_one_request(w: World) -> None:
    one, two = w.add(0, 1, 2)
    assert (one.to, one.markers) == (broker(1), ((COMMIT, partitions(0, 2)),))
    assert (two.to, two.markers) == (broker(2), ((COMMIT, partitions(1)),))
    assert w.says(one) == [Done(w.host, "x", COMMIT, partitions(0, 2), last=False)]
    assert w.plan.without(w.host, "x") == partitions(1)
    assert w.says(two) == [Done(w.host, "x", COMMIT, partitions(1), last=True)]
    assert (w.plan.endings, w.plan.next_due_ms()) == (0, None)


def test_shards_of_groups_are_told_through_their_coordinator(w: World) -> None:
    id = PartitionId(GROUPS, 0)
    w.plan.add(w.host, "x", COMMIT, [id], 0)
    (request,) = w.sends()
    assert (request.to, request.markers) == (coordinator(1), ((COMMIT, (id,)),))
    w.plan.image_changed(image(groups_owner=2, revision=2), 0)
    (again,) = w.sends()
    assert again.to == coordinator(2)


def test_what_comes_together_goes_together(w: World) -> None:
    for number in range(5):
        w.plan.add(w.host, f"x{number}", COMMIT, partitions(0), 0)
    (request,) = w.sends()
    assert len(request.markers) == 5


def test_requests_to_one_destination_are_bounded_and_the_rest_gathers(w: World) -> None:
    requests = [w.add(0, id=f"x{n}")[0] for n in range(REQUESTS_MAX)]
    assert w.add(0, id="y") == w.add(2, id="z") == []
    done, following = w.says(requests[0])[::-1]
    assert isinstance(done, Done)
    assert isinstance(following, Send)
    assert following.markers == ((COMMIT, partitions(0)), (COMMIT, partitions(2)))


def test_requests_are_bounded_in_partitions(w: World) -> None:
    w.plan.image_changed(image([1] * (PARTITIONS_PER_REQUEST + 1), revision=2), 0)
    one, two = w.add(*range(PARTITIONS_PER_REQUEST + 1))
    assert [sum(len(ids) for _, ids in r.markers) for r in (one, two)] == [PARTITIONS_PER_REQUEST, 1]


# --- again ------------------------------------------------------------------------------------------------------


def test_a_refusal_is_repeated_with_growing_pauses_for_ever(w: World) -> None:
    (request,) = w.add(0)
    pause = PAUSE_MS_FIRST
    for _ in range(20):
        assert w.says(request, NotEnoughReplicas("too few")) == []
        assert w.plan.next_due_ms() == w.now_ms + pause
        assert w.passes(pause - 1) == []
        ((request),) = w.passes(1)  # a Send, as the next answer proves
        pause = min(PAUSE_MS_MAX, 2 * pause)
    assert w.says(request) == [Done(w.host, "x", COMMIT, partitions(0), last=True)]


def test_a_request_that_gets_lost_is_repeated(w: World) -> None:
    (request,) = w.add(0, 2)
    wrong = w.plan.failed(request.number, NetworkFailed("gone"), 0)
    assert [(id, tries) for _, id, _, tries in wrong] == [(id, 1) for id in partitions(0, 2)]
    (again,) = w.passes(PAUSE_MS_FIRST)
    assert isinstance(again, Send)
    assert again.markers == request.markers


def test_partitions_of_one_request_may_fare_differently(w: World) -> None:
    (request,) = w.add(0, 2)
    assert w.says(request, None, NotLeader("moved")) == [Done(w.host, "x", COMMIT, partitions(0), last=False)]
    assert w.plan.without(w.host, "x") == partitions(2)


def test_a_partition_that_has_moved_on_needs_no_end(w: World) -> None:
    (request,) = w.add(0)
    assert w.says(request, InvalidProducerEpoch("known")) == [Done(w.host, "x", COMMIT, partitions(0), last=True)]


def test_a_new_leader_is_told_at_once(w: World) -> None:
    (request,) = w.add(0)
    w.says(request, NotLeader("moved"))
    w.plan.image_changed(image((2, 2, 1), revision=2), 0)
    (again,) = w.sends()
    assert again.to == broker(2)


def test_a_leader_that_does_not_answer_is_not_waited_for_once_there_is_another(w: World) -> None:
    (old,) = w.add(0)
    w.plan.image_changed(image((2, 2, 1), revision=2), 0)
    (new,) = w.sends()
    w.plan.failed(old.number, NetworkFailed("late"), 0)
    assert w.sends() == [], "its failure says nothing about the request to the new leader"
    assert w.says(new) == [Done(w.host, "x", COMMIT, partitions(0), last=True)]


def test_a_late_success_counts_and_a_second_one_changes_nothing(w: World) -> None:
    (old,) = w.add(0)
    w.plan.image_changed(image((2, 2, 1), revision=2), 0)
    (new,) = w.sends()
    assert w.says(old) == [Done(w.host, "x", COMMIT, partitions(0), last=True)]
    assert w.says(new) == []


def test_without_a_leader_the_image_is_waited_for(w: World) -> None:
    w.plan.image_changed(image((NO_NODE, 2, 1), revision=2), 0)
    assert w.add(0) == []
    assert w.plan.next_due_ms() is None
    w.plan.image_changed(image((2, 2, 1), revision=3), 0)
    assert [request.to for request in w.sends()] == [broker(2)]


def test_partitions_that_the_image_does_not_have_yet_are_waited_for(w: World) -> None:
    assert w.add(3) == []
    w.plan.image_changed(image((1, 2, 1, 2), revision=2), 0)
    assert [request.to for request in w.sends()] == [broker(2)]


# --- topics that are no more ------------------------------------------------------------------------------------


def without_topic(revision: int) -> ClusterImage:
    there = image(revision=revision)
    return replace(there, topics={id: t for id, t in there.topics.items() if id != T}, partitions={})


def test_a_topic_that_is_deleted_needs_no_end(w: World) -> None:
    (request, _) = w.add(0, 1)
    w.says(request, NotLeader("deleted here"))
    w.plan.image_changed(without_topic(2), 0)
    assert w.plan.pump(0) == [Done(w.host, "x", COMMIT, partitions(0, 1), last=True)]


def test_a_topic_that_was_deleted_before_the_end_needs_none(w: World) -> None:
    w.plan.image_changed(without_topic(2), 0)
    w.plan.add(w.host, "x", COMMIT, partitions(0), 0)
    assert w.plan.pump(0) == [Done(w.host, "x", COMMIT, partitions(0), last=True)]


def test_a_topic_that_is_being_deleted_needs_no_end() -> None:
    w = World(MarkerPlan())
    fresh = MarkerPlan()
    w.plan = fresh
    deleting = replace(without_topic(1), deletions={T: TopicDeletion(T, "t", (NodeId(1),))})
    fresh.image_changed(deleting, 0)
    fresh.add(w.host, "x", COMMIT, partitions(0), 0)
    assert fresh.pump(0) == [Done(w.host, "x", COMMIT, partitions(0), last=True)]


def never_seen() -> World:
    w = World()
    w.plan = MarkerPlan()
    w.plan.image_changed(without_topic(5), 0)
    assert w.add(0) == []
    return w


def test_a_topic_that_was_never_seen_may_yet_turn_up() -> None:
    w = never_seen()
    assert w.passes(UNKNOWN_MS - 1) == []
    w.plan.image_changed(image(revision=6), w.now_ms)
    assert [request.to for request in w.sends()] == [broker(1)]


def test_a_topic_that_was_never_seen_is_gone_when_the_image_is_new_enough() -> None:
    w = never_seen()
    assert w.passes(UNKNOWN_MS) == [AskRevision()]
    assert w.passes(1) == [], "one question at a time"
    w.plan.revision_known(5, w.now_ms)
    assert w.passes(0) == [Done(w.host, "x", COMMIT, partitions(0), last=True)]


def test_an_old_image_does_not_tell_that_a_topic_is_gone() -> None:
    w = never_seen()
    assert w.passes(UNKNOWN_MS) == [AskRevision()]
    w.plan.revision_known(7, w.now_ms)
    assert w.passes(0) == []
    w.plan.image_changed(without_topic(6), w.now_ms)
    assert w.passes(0) == []
    w.plan.image_changed(image(revision=7), w.now_ms)
    assert [request.to for request in w.sends()] == [broker(1)]


def test_an_image_that_has_caught_up_tells_that_a_topic_is_gone() -> None:
    w = never_seen()
    w.passes(UNKNOWN_MS)
    w.plan.revision_known(7, w.now_ms)
    w.plan.image_changed(without_topic(7), w.now_ms)
    assert w.passes(0) == [Done(w.host, "x", COMMIT, partitions(0), last=True)]


def test_when_no_controller_answers_it_is_asked_again() -> None:
    w = never_seen()
    assert w.passes(UNKNOWN_MS) == [AskRevision()]
    w.plan.revision_known(None, w.now_ms)
    assert w.passes(PAUSE_MS_MAX) == [AskRevision()]


# --- letting go -------------------------------------------------------------------------------------------------


def test_a_host_that_lets_its_shard_go_takes_its_ends_back(w: World) -> None:
    (request,) = w.add(0)
    w.plan.forget(w.host)
    assert w.plan.endings == 0
    assert w.says(request, NotLeader("moved")) == []
    assert w.passes(PAUSE_MS_MAX) == []


def test_the_same_end_again_after_a_reload_is_told_again(w: World) -> None:
    (old,) = w.add(0)
    (new,) = w.add(0)
    assert w.says(old) == []
    assert w.says(new) == [Done(w.host, "x", COMMIT, partitions(0), last=True)]


def test_an_end_without_partitions_is_done(w: World) -> None:
    w.plan.add(w.host, "x", COMMIT, [], 0)
    assert w.plan.pump(0) == [Done(w.host, "x", COMMIT, (), last=True)]


# --- property ---------------------------------------------------------------------------------------------------


class Disturbed(RuleBasedStateMachine):
    """Leaders move, requests get lost, answers come late: each end is told to be done once, by who had it."""

    def __init__(self) -> None:
        super().__init__()
        self.plan = MarkerPlan()
        self.host = Host()
        self.revision = 1
        self.now_ms = 0.0
        self.leaders = [1, 2, 1]
        self.plan.image_changed(image(self.leaders), 0)
        self.requests: list[Send] = []
        self.has: dict[str, set[PartitionId]] = {}
        """Partitions that have the end of this id."""
        self.told: dict[str, list[PartitionId]] = {}
        self.wanted: dict[str, tuple[Marker, tuple[PartitionId, ...]]] = {}

    def take(self) -> None:
        for effect in self.plan.pump(self.now_ms):
            match effect:
                case Send():
                    self.requests.append(effect)
                case Done(_, id, marker, ids, last):
                    assert marker == self.wanted[id][0]
                    assert self.has[id] >= set(ids), "nobody says that it is done before it is"
                    self.told[id] += ids
                    assert last == (set(self.told[id]) == set(self.wanted[id][1]))
        under_way = [request.to for request in self.requests]
        assert all(under_way.count(to) <= REQUESTS_MAX for to in under_way)

    @rule(numbers=st.sets(st.integers(0, 2), min_size=1))
    def ends(self, numbers: set[int]) -> None:
        id = f"x{len(self.wanted)}"
        marker = Marker(len(self.wanted), 1, commit=True)
        self.wanted[id] = marker, partitions(*sorted(numbers))
        self.has[id], self.told[id] = set(), []
        self.plan.add(self.host, id, marker, self.wanted[id][1], self.now_ms)
        self.take()

    @rule(leaders=st.lists(st.sampled_from([NO_NODE, 1, 2]), min_size=3, max_size=3))
    def leaders_move(self, leaders: list[int]) -> None:
        self.revision += 1
        self.leaders = leaders
        self.plan.image_changed(image(leaders, revision=self.revision), self.now_ms)
        self.take()

    @rule(ms=st.sampled_from([1.0, 30.0, 2_000.0]))
    def time_passes(self, ms: float) -> None:
        self.now_ms += ms
        self.take()

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), lost=st.booleans())
    def somebody_answers(self, data: st.DataObject, *, lost: bool) -> None:
        request = self.requests.pop(data.draw(st.integers(0, len(self.requests) - 1)))
        answers: list[list[HeadraceError | None]] = []
        for marker, ids in request.markers:
            own = [self.answer_of(marker, id, request.to) for id in ids]
            answers.append(own)
        if lost:
            self.plan.failed(request.number, NetworkFailed("lost"), self.now_ms)
        else:
            self.plan.answered(request.number, answers, self.now_ms)
        self.take()

    def answer_of(self, marker: Marker, id: PartitionId, to: Destination) -> HeadraceError | None:
        if to != broker(self.leaders[id.partition]):
            return NotLeader("moved")
        self.has[f"x{marker.producer_id}"].add(id)
        return None

    @invariant()
    def nothing_is_told_twice(self) -> None:
        for ids in self.told.values():
            assert len(ids) == len(set(ids))

    def teardown(self) -> None:
        """Once leaders stay and everybody answers, all ends get everywhere."""
        self.leaders_move([1, 2, 1])
        while self.requests or self.plan.next_due_ms() is not None:
            while self.requests:
                request = self.requests.pop(0)
                answers = [[self.answer_of(marker, id, request.to) for id in ids] for marker, ids in request.markers]
                self.plan.answered(request.number, answers, self.now_ms)
                self.take()
            self.time_passes(PAUSE_MS_MAX)
        assert {id: set(ids) for id, ids in self.told.items()} == {id: set(ids) for id, (_, ids) in self.wanted.items()}
        assert self.plan.endings == 0


Disturbed.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestDisturbed = Disturbed.TestCase
