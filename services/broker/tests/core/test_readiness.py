"""When a broker is ready, as dialogues of images, and against a naive oracle that remembers all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headrace_broker.core.readiness import Readiness
from headrace_common.core.ids import NO_NODE, Endpoint, NodeId, PartitionId, TopicId
from headrace_common.core.image import EMPTY_IMAGE, ClusterImage, Node, NodeKey, Partition, Role

ME = NodeId(0)
OURS, THEIRS = b"o" * 16, b"t" * 16
TOPIC = TopicId(b"a" * 16)
LIMIT_MS = 300_000.0


def node(broker: int, *, fenced: bool = False, incarnation: bytes = OURS) -> Node:
    key = NodeKey(Role.BROKER, NodeId(broker))
    return Node(key, Endpoint("b", 1), incarnation, epoch=1, fenced=fenced)


def partition(
    number: int,
    isr: Sequence[int],
    *,
    replicas: Sequence[int] = (0, 1, 2),
    leader: int | None = None,
    elr: Sequence[int] = (),
    known: Sequence[int] = (),
    adding: Sequence[int] = (),
    removing: Sequence[int] = (),
) -> Partition:
    chosen = leader if leader is not None else next(iter(isr), NO_NODE)
    ids = [tuple(map(NodeId, some)) for some in (replicas, isr, elr, known, adding, removing)]
    return Partition(
        PartitionId(TOPIC, number),
        replicas=ids[0],
        isr=ids[1],
        leader=NodeId(chosen),
        leader_epoch=1,
        partition_epoch=1,
        elr=ids[2],
        last_known_elr=ids[3],
        adding=ids[4],
        removing=ids[5],
    )


def image(*partitions: Partition, me: Node | None = None, others: Sequence[Node] | None = None) -> ClusterImage:
    nodes = [me or node(0), *((node(1), node(2)) if others is None else others)]
    return replace(EMPTY_IMAGE, nodes={n.key: n for n in nodes}, partitions={p.id: p for p in partitions})


def readiness() -> Readiness:
    return Readiness(ME, OURS, LIMIT_MS)


def told(one: Readiness, *images: ClusterImage) -> list[bool]:
    return [one.take(each, now_ms=10.0 * number) for number, each in enumerate(images)]


# --- dialogues --------------------------------------------------------------------------------------------------


def test_an_empty_cluster_is_ready_with_the_first_image_that_lets_it_take_part() -> None:
    nobody = replace(EMPTY_IMAGE, nodes={})
    assert told(readiness(), nobody, image(me=node(0, fenced=True)), image()) == [False, False, True]


def test_a_registration_of_another_process_under_this_id_counts_for_nothing() -> None:
    assert told(readiness(), image(me=node(0, incarnation=THEIRS)), image()) == [False, True]


def test_it_waits_for_each_replica_that_is_placed_here() -> None:
    assert told(
        readiness(),
        image(partition(0, [1, 2]), partition(1, [1, 2])),
        image(partition(0, [0, 1, 2]), partition(1, [1, 2])),
        image(partition(0, [1, 2]), partition(1, [0, 1, 2])),
    ) == [False, False, True], "each was in sync once, which is enough"


def test_an_isr_from_before_it_takes_part_proves_nothing() -> None:
    fenced = image(partition(0, [0, 1]), me=node(0, fenced=True))
    assert told(readiness(), fenced, image(partition(0, [1])), image(partition(0, [0, 1]))) == [False, False, True]


def test_ready_is_for_good() -> None:
    one = readiness()
    assert told(one, image(partition(0, [0]))) == [True]
    for later in (image(partition(0, [1])), image(me=node(0, fenced=True)), image(me=node(0, incarnation=THEIRS))):
        assert one.take(later, 1e9)


def test_partitions_of_others_and_partitions_that_come_later_are_ignored() -> None:
    others = partition(0, [1, 2], replicas=[1, 2])
    assert told(readiness(), image(others)) == [True]
    late = partition(2, [1, 2])
    begun = image(partition(1, [1, 2]))
    assert told(readiness(), begun, image(partition(1, [0, 1, 2]), late)) == [False, True]


def test_a_partition_that_goes_away_holds_nobody() -> None:
    moved = partition(0, [1, 2], replicas=[1, 2])
    assert told(readiness(), image(partition(0, [1, 2])), image(moved)) == [False, True]
    assert told(readiness(), image(partition(0, [1, 2])), image()) == [False, True]


def test_a_reassignment_holds_nobody() -> None:
    assert told(readiness(), image(partition(0, [1, 2], adding=[0]))) == [True]
    assert told(readiness(), image(partition(0, [1, 2], removing=[0]))) == [True]


def test_offline_without_anybody_alive_to_lead_it_holds_nobody() -> None:
    dead = [node(1, fenced=True), node(2)]
    for hopeless in (
        partition(0, [], elr=[1]),
        partition(0, [1], leader=NO_NODE),
        partition(0, [], known=[0, 1]),
        partition(0, []),
    ):
        assert told(readiness(), image(hopeless, others=dead)) == [True], hopeless


def test_offline_for_a_moment_is_waited_for() -> None:
    for about_to_be_led in (partition(0, [], elr=[0]), partition(0, [], elr=[1]), partition(0, [], known=[0, 1])):
        assert told(readiness(), image(about_to_be_led), image(partition(0, [0]))) == [False, True], about_to_be_led


def test_hope_that_comes_back_counts_again_until_it_is_ready() -> None:
    dead = [node(1, fenced=True), node(2)]
    held, lost = partition(0, [2]), partition(1, [], elr=[1])
    assert told(
        readiness(),
        image(held, lost, others=dead),
        image(partition(0, [0, 2]), partition(1, [1])),
        image(partition(0, [0, 2]), partition(1, [0, 1])),
    ) == [False, False, True]


def test_the_limit_ends_all_waiting_and_counts_from_when_it_takes_part() -> None:
    one = readiness()
    assert not one.look(1e12), "nobody is ready who was never let take part"
    assert not one.take(image(partition(0, [1]), me=node(0, fenced=True)), 1e12)
    assert not one.take(image(partition(0, [1])), 2e12)
    assert not one.look(2e12 + LIMIT_MS - 1)
    assert one.look(2e12 + LIMIT_MS)
    assert one.behind == {PartitionId(TOPIC, 0)}


# --- against an oracle ------------------------------------------------------------------------------------------

BROKERS = [0, 1, 2]
subsets = st.lists(st.sampled_from(BROKERS), unique=True)


@st.composite
def partitions(draw: st.DrawFn) -> Partition:
    isr = draw(subsets)
    rest = [b for b in BROKERS if b not in isr]
    return partition(
        draw(st.integers(0, 2)),
        isr,
        replicas=draw(st.sampled_from([BROKERS, [1, 2], [0]])),
        leader=draw(st.sampled_from([NO_NODE, *isr])),
        elr=draw(st.lists(st.sampled_from(rest), unique=True)) if rest else (),
        known=draw(subsets),
        adding=draw(st.sampled_from([(), (0,), (1,)])),
        removing=draw(st.sampled_from([(), (2,)])),
    )


nodes = st.builds(
    lambda fenced, ours: node(0, fenced=fenced, incarnation=OURS if ours else THEIRS), st.booleans(), st.booleans()
)
images = st.builds(
    lambda some, me, fenced: image(*some, me=me, others=[node(1, fenced=fenced[0]), node(2, fenced=fenced[1])]),
    st.lists(partitions(), max_size=3),
    st.one_of(st.just(node(0)), nodes),
    st.tuples(st.booleans(), st.booleans()),
)


def oracle(history: Sequence[tuple[float, ClusterImage]]) -> bool:
    """By all images of the past, in the words of the design."""
    part: list[tuple[float, ClusterImage]] = []
    for now, each in history:
        me = each.nodes[NodeKey(Role.BROKER, ME)]
        if me.fenced or me.incarnation != OURS:
            continue
        part.append((now, each))
        began, first = part[0]
        holds = []
        for id in (p.id for p in first.partitions.values() if ME in p.replicas):
            if any(id in seen.partitions and ME in seen.partitions[id].isr for _, seen in part):
                continue
            p = each.partitions.get(id)
            if p is None or ME not in p.replicas or ME in p.adding or ME in p.removing:
                continue
            fenced = {n.key.id for n in each.brokers() if n.fenced}
            if p.leader == NO_NODE:
                if p.isr or p.elr:
                    if {*p.isr, *p.elr} <= fenced:
                        continue
                elif not p.last_known_elr or set(p.last_known_elr) & fenced:
                    continue
            holds.append(id)
        if not holds or now >= began + LIMIT_MS:
            return True
    return False


@given(st.lists(st.tuples(st.floats(0, LIMIT_MS / 2), images), max_size=8))
def test_it_says_what_the_whole_history_says_and_never_takes_it_back(steps: list[tuple[float, ClusterImage]]) -> None:
    one, history, now = readiness(), [], 0.0
    was = False
    for pause, each in steps:
        now += pause
        history.append((now, each))
        got = one.take(each, now)
        assert got == oracle(history)
        assert got or not was, "never un-ready"
        was = got


@given(st.lists(images, min_size=1, max_size=5))
def test_it_is_never_stuck_beyond_the_limit(steps: list[ClusterImage]) -> None:
    one = readiness()
    for each in steps:
        one.take(each, 0.0)
    one.take(image(partition(9, [1])), 0.0)
    assert one.look(LIMIT_MS)
