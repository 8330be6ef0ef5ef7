"""Nothing is shown before what its group persisted until then is committed; and nothing waits longer than that."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from headrace_coordinator.core.effects import Answer, LeaveAnswer, Persist, PersistGroup, Row, Send
from headrace_coordinator.engine.outbox import Outbox, Visible


@dataclass
class World:
    shown: list[Visible] = field(default_factory=list)
    state: dict[str, int] = field(default_factory=dict)
    outbox: Outbox[Visible] = field(init=False)

    def __post_init__(self) -> None:
        self.outbox = Outbox(self.rows, self.shown.append)

    def rows(self, group_id: str) -> list[Row]:
        return [(group_id.encode(), str(self.state.get(group_id, 0)).encode())]


def sent(group_id: str, number: int) -> Send:
    return Send(group_id, number, LeaveAnswer(None))


def test_shown_at_once_when_nothing_was_persisted() -> None:
    world = World()
    world.outbox.take([sent("g", 1)], proof=False)
    assert world.shown == [sent("g", 1)]
    assert not world.outbox.append_wanted


def test_what_follows_a_persist_waits_for_it_and_other_groups_do_not() -> None:
    world = World()
    world.outbox.take([sent("g", 1), Persist("g", ((b"k", b"v"),)), sent("g", 2)], proof=False)
    world.outbox.take([sent("g", 3), sent("h", 4)], proof=False)
    assert world.shown == [sent("g", 1), sent("h", 4)]
    assert world.outbox.begin() == [(b"k", b"v")]
    assert world.outbox.held == 2
    world.outbox.done()
    assert world.shown[2:] == [sent("g", 2), sent("g", 3)]
    assert not world.outbox.held


def test_what_comes_while_an_append_is_under_way_goes_into_the_next_whole() -> None:
    world = World()
    world.outbox.take([PersistGroup("g"), sent("g", 1)], proof=False)
    assert world.outbox.begin() == [(b"g", b"0")]
    for number in range(2, 5):
        world.state["g"] = number
        world.outbox.take([PersistGroup("g"), Persist("h", ((b"k", str(number).encode()),))], proof=False)
        world.outbox.take([sent("g", number)], proof=False)
    world.outbox.done()
    assert world.shown == [sent("g", 1)]
    assert sorted(world.outbox.begin()) == [(b"g", b"4"), (b"k", b"4")]
    world.outbox.done()
    assert world.shown == [sent("g", number) for number in range(1, 5)]


def test_a_proof_waits_for_an_append_that_begins_later() -> None:
    world = World()
    world.outbox.take([Persist("g", ((b"k", b"v"),))], proof=False)
    world.outbox.begin()
    world.outbox.take([Answer("h", 1, None)], proof=True)
    world.outbox.done()
    assert world.shown == [], "the append had begun before the question came"
    assert world.outbox.append_wanted
    assert world.outbox.begin() == []
    world.outbox.done()
    assert world.shown == [Answer("h", 1, None)]
    assert not world.outbox.append_wanted


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("persist"), st.sampled_from("abc")),
        st.tuples(st.just("send"), st.sampled_from("abc")),
        st.tuples(st.just("proof"), st.sampled_from("abc")),
        st.tuples(st.just("append"), st.just("")),
    ),
    max_size=60,
)


@given(STEPS)
def test_order_and_durability_whatever_happens(steps: list[tuple[str, str]]) -> None:
    world = World()
    durable: dict[str, int] = {}
    needs: dict[int, tuple[str, int]] = {}
    order: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    under_way: dict[str, int] | None = None
    checked = 0

    def append() -> None:
        nonlocal under_way, checked
        if under_way is not None:
            durable.update(under_way)
            under_way = None
            world.outbox.done()
        elif world.outbox.append_wanted:
            under_way = {key.decode(): int(value or b"0") for key, value in world.outbox.begin()}
        for effect in world.shown[checked:]:
            assert isinstance(effect, Send)
            group_id, version = needs[effect.stream]
            assert durable.get(group_id, 0) >= version
        checked = len(world.shown)

    for number, (kind, group_id) in enumerate(steps, 1):
        if kind == "persist":
            world.state[group_id] = number
            world.outbox.take([PersistGroup(group_id)], proof=False)
        elif kind == "append":
            append()
        else:
            needs[number] = (group_id, world.state.get(group_id, 0))
            order[group_id].append(number)
            world.outbox.take([sent(group_id, number)], proof=kind == "proof")
    while under_way is not None or world.outbox.append_wanted:
        append()
    for group_id, numbers in order.items():
        assert [e.stream for e in world.shown if isinstance(e, Send) and e.group_id == group_id] == numbers
    assert not world.outbox.held
