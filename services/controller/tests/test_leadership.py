"""Elections by command, imbalance, drained brokers, and what the numbers of a cluster say."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest

from headrace_common.core.errors import ElectionNotNeeded, EligibleLeadersNotAvailable, PreferredLeaderNotAvailable
from headrace_common.core.ids import NO_NODE, NodeId, PartitionId, TopicId
from headrace_common.core.image import EMPTY_IMAGE, Partition, Topic
from headrace_controller.core.election import Brokers, LogEnds, Rules, settle
from headrace_controller.core.health import TROUBLED_MAX, examine
from headrace_controller.core.leadership import (
    Election,
    elect_longest,
    elect_preferred,
    find_imbalanced,
    lead_by_broker_with_room,
)

TOPIC = TopicId(b"t" * 16)
MIN2 = Rules(min_isr=2)


def ids(*numbers: int) -> tuple[NodeId, ...]:
    return tuple(map(NodeId, numbers))


def up(
    *numbers: int, drained: tuple[int, ...] = (), leaving: tuple[int, ...] = (), crowded: tuple[int, ...] = ()
) -> Brokers:
    sets = (frozenset(ids(*some)) for some in (numbers, leaving, drained, crowded))
    return Brokers(*sets)


def part(leader: int, isr: tuple[int, ...] = (1, 2, 3), number: int = 0, **sets: tuple[NodeId, ...]) -> Partition:
    return Partition(PartitionId(TOPIC, number), ids(1, 2, 3), ids(*isr), NodeId(leader), 5, 9, **sets)


class TestPreferred:
    def test_the_first_replica_takes_over(self) -> None:
        new = elect_preferred(part(2), up(1, 2, 3), MIN2)
        assert (new.leader, new.isr, new.leader_epoch, new.partition_epoch) == (1, ids(1, 2, 3), 6, 10)

    def test_not_needed(self) -> None:
        with pytest.raises(ElectionNotNeeded):
            elect_preferred(part(1), up(1, 2, 3), MIN2)

    @pytest.mark.parametrize(
        "brokers", [up(2, 3), *(up(1, 2, 3, **{why: (1,)}) for why in ("drained", "leaving", "crowded"))]
    )
    def test_not_one_that_may_not_lead(self, brokers: Brokers) -> None:
        with pytest.raises(PreferredLeaderNotAvailable):
            elect_preferred(part(2), brokers, MIN2)

    def test_not_one_that_is_not_in_sync(self) -> None:
        with pytest.raises(PreferredLeaderNotAvailable):
            elect_preferred(part(2, isr=(2, 3)), up(1, 2, 3), MIN2)

    @pytest.mark.parametrize(("astray", "moved"), [(1, 0), (2, 2)])
    def test_only_above_the_percentage(self, astray: int, moved: int) -> None:
        partitions = [part(2 if n < astray else 1, number=n) for n in range(10)]
        assert len(find_imbalanced(partitions, up(1, 2, 3), 10)) == moved

    def test_only_what_can_move(self) -> None:
        partitions = [part(2, number=0), part(2, isr=(2, 3), number=1), part(-1, isr=(), number=2)]
        assert find_imbalanced(partitions, up(1, 2, 3), 10) == partitions[:1]


class TestDrained:
    def test_leaders_go_at_once_and_the_isr_stays(self) -> None:
        new = settle(part(1), up(1, 2, 3, drained=(1,)), MIN2)
        assert (new.leader, new.isr, new.leader_epoch) == (2, ids(1, 2, 3), 6)

    def test_where_nobody_else_can_it_leads_on(self) -> None:
        alone = part(1, isr=(1,), elr=ids(2))
        assert settle(alone, up(1, 3, drained=(1,)), MIN2) is alone
        both = part(2)
        assert settle(both, up(1, 2, 3, drained=(1, 2, 3)), MIN2) is both

    def test_it_is_elected_last(self) -> None:
        assert settle(part(3), up(1, 2, drained=(1,)), MIN2).leader == 2
        assert settle(part(3), up(1, drained=(1,)), MIN2).leader == 1
        down = part(-1, isr=(), elr=ids(1, 2))
        assert settle(down, up(1, 2, drained=(1,)), MIN2).leader == 2
        assert settle(down, up(1, drained=(1,)), MIN2).leader == 1


class TestCrowded:
    def test_who_has_room_takes_over_and_the_isr_stays(self) -> None:
        new = lead_by_broker_with_room(part(1), up(1, 2, 3, crowded=(1, 2)), MIN2)
        assert (new.leader, new.isr, new.leader_epoch, new.partition_epoch) == (3, ids(1, 2, 3), 6, 10)

    @pytest.mark.parametrize(
        ("partition", "brokers"),
        [
            (part(2), up(1, 2, 3, crowded=(1,))),
            (part(1), up(1, 2, 3, crowded=(1, 2, 3))),
            (part(1), up(1, 2, 3, crowded=(1, 2), drained=(3,))),
            (part(1), up(1, 2, 3, crowded=(1,), leaving=(2, 3))),
            (part(1, isr=(1,), elr=ids(2)), up(1, 2, 3, crowded=(1,))),
            (part(-1, isr=(), elr=ids(2)), up(1, 3, crowded=(1,))),
        ],
        ids=["it has room", "nobody has", "who has it is drained", "who has it leaves", "not in sync", "nobody leads"],
    )
    def test_it_stays_where(self, partition: Partition, brokers: Brokers) -> None:
        assert lead_by_broker_with_room(partition, brokers, MIN2) is partition

    def test_by_itself_a_leader_stays(self) -> None:
        """Only ``lead_by_broker_with_room`` moves it, which is not asked too often."""
        led = part(1)
        assert settle(led, up(1, 2, 3, crowded=(1,)), MIN2) is led

    def test_it_is_elected_after_all_with_room(self) -> None:
        assert settle(part(3), up(1, 2, crowded=(1,)), MIN2).leader == 2
        assert settle(part(3), up(1, 2, crowded=(1,), drained=(2,)), MIN2).leader == 2
        assert settle(part(3), up(1, crowded=(1,)), MIN2).leader == 1
        assert settle(part(1), up(1, 2, 3, drained=(1,), crowded=(2, 3)), MIN2).leader == 1

    def test_it_gets_nothing_back(self) -> None:
        assert find_imbalanced([part(2)], up(1, 2, 3, crowded=(1,)), 10) == []
        assert find_imbalanced([part(2)], up(1, 2, 3), 10) == [part(2)]


class TestCommanded:
    DOWN = part(-1, isr=(), last_known_elr=ids(1, 2))
    ENDS: ClassVar[LogEnds] = {NodeId(2): (4, 10), NodeId(3): (4, 12)}

    def test_without_missing_takes_the_best_of_the_known_that_live(self) -> None:
        new = elect_longest(self.DOWN, Election.WITHOUT_MISSING, up(2, 3), MIN2, self.ENDS)
        assert (new.leader, new.isr, new.last_known_elr, new.recovering) == (2, ids(2), (), True)
        assert new.leader_epoch == 6

    def test_unclean_takes_the_longest_of_all(self) -> None:
        assert elect_longest(self.DOWN, Election.UNCLEAN, up(2, 3), MIN2, self.ENDS).leader == 3

    def test_unclean_takes_even_an_empty_disk(self) -> None:
        assert elect_longest(self.DOWN, Election.UNCLEAN, up(2, 3), MIN2, {NodeId(2): None}).leader == 2

    def test_without_missing_does_not(self) -> None:
        with pytest.raises(EligibleLeadersNotAvailable, match="no whole log"):
            elect_longest(self.DOWN, Election.WITHOUT_MISSING, up(2, 3), MIN2, {NodeId(3): (4, 12)})

    @pytest.mark.parametrize("kind", [Election.UNCLEAN, Election.WITHOUT_MISSING])
    def test_nobody_lives_or_somebody_leads(self, kind: Election) -> None:
        with pytest.raises(EligibleLeadersNotAvailable, match="start one"):
            elect_longest(self.DOWN, kind, up(), MIN2, {})
        with pytest.raises(ElectionNotNeeded):
            elect_longest(part(1), kind, up(1), MIN2, {})


class TestUncleanBySetting:
    UNCLEAN = Rules(2, unclean=True)

    def test_when_all_known_are_back_their_logs_are_compared_first(self) -> None:
        down = part(-1, isr=(), last_known_elr=ids(1, 2))
        assert settle(down, up(1, 2, 3), self.UNCLEAN) is down
        led = settle(down, up(1, 2, 3), self.UNCLEAN, {NodeId(1): (4, 1), NodeId(2): (4, 2)})
        assert (led.leader, led.recovering) == (2, False)

    def test_a_known_member_that_does_not_answer_is_not_waited_for(self) -> None:
        down = part(-1, isr=(), last_known_elr=ids(1, 2))
        led = settle(down, up(1, 2, 3), self.UNCLEAN, {NodeId(2): (4, 2)})
        assert (led.leader, led.recovering) == (2, True)

    def test_who_is_known_goes_before_who_is_not(self) -> None:
        led = settle(part(-1, isr=(), last_known_elr=ids(1, 3)), up(2, 3), self.UNCLEAN)
        assert (led.leader, led.recovering) == (3, True)


def test_health_counts_and_names_the_worst_first() -> None:
    topic = Topic("t", TOPIC, 200)
    fine, astray, thin, weak = part(1), part(2, number=1), part(1, isr=(1, 2), number=2), part(1, isr=(1,), number=3)
    moving = replace(part(1, number=4), adding=ids(3))
    lost = replace(part(1, number=5), recovering=True)
    down = [part(NO_NODE, isr=(), number=n) for n in range(6, 8)]
    partitions = {p.id: p for p in (fine, astray, thin, weak, moving, lost, *down)}
    health = examine(replace(EMPTY_IMAGE, topics={TOPIC: topic}, partitions=partitions))
    assert (health.offline, health.under_replicated, health.under_min_isr) == (2, 4, 3)
    assert (health.not_preferred, health.reassigning, health.recovering) == (1, 1, 1)
    assert health.troubled == (*down, weak)
    many = {p.id: p for p in (part(NO_NODE, isr=(), number=n) for n in range(200))}
    assert len(examine(replace(EMPTY_IMAGE, topics={TOPIC: topic}, partitions=many)).troubled) == TROUBLED_MAX
