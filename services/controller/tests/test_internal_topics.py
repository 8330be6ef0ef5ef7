"""Internal topics: made on the brokers there are, and raised when more join."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_common.core.errors import CoordinatorNotAvailable, InvalidConfig, InvalidTopic
from headrace_common.core.ids import Endpoint, NodeId, PartitionId, TopicId
from headrace_common.core.image import (
    EMPTY_IMAGE,
    ClusterImage,
    ImageDelta,
    Node,
    NodeKey,
    Partition,
    Role,
    ShardKind,
    Topic,
)
from headrace_controller.core.held import tokens
from headrace_controller.core.internal_topics import add_replicas, internal_changes, plan_internal
from headrace_controller.core.settings import Alteration, Op
from headrace_controller.core.shards import counts
from headrace_controller.core.topics import Chance

ID = TopicId(b"o" * 16)


def broker(number: int, *, rack: str | None = None, fenced: bool = False, drained: bool = False) -> Node:
    key = NodeKey(Role.BROKER, NodeId(number))
    return Node(key, Endpoint("h", 1), bytes(16), 1, rack=rack, fenced=fenced, drained=drained)


def image(nodes: list[Node], assignments: list[tuple[int, ...]] | None = None, **configs: str) -> ClusterImage:
    delta = ImageDelta(b"i" * 16, None, 1, "c", nodes=tuple(nodes), cluster_configs=configs)
    if assignments is not None:
        replicas = [tuple(map(NodeId, a)) for a in assignments]
        partitions = [Partition(PartitionId(ID, n), r, r, r[0], 0, 0) for n, r in enumerate(replicas)]
        topic = Topic("__consumer_offsets", ID, len(assignments), internal=True)
        delta = replace(delta, topics=(topic,), partitions=tuple(partitions))
    return EMPTY_IMAGE.apply(delta)


def plan(of: ClusterImage) -> object:
    return plan_internal(ShardKind.GROUPS, of, Chance(0, 0))


class TestMaking:
    def test_three_brokers_give_three_replicas_and_the_defaults(self) -> None:
        made = plan_internal(ShardKind.GROUPS, image([broker(n) for n in range(4)]), Chance(5, 3))
        topic = made.topic(ID)
        assert (topic.name, topic.partition_count, topic.internal) == ("__consumer_offsets", 50, True)
        assert {len(a) for a in made.assignments} == {3}
        assert dict(topic.configs) == {
            "cleanup.policy": "compact",
            "max.message.bytes": "16777216",
            "min.insync.replicas": "2",
            "segment.bytes": "104857600",
            "unclean.leader.election.enable": "false",
        }

    def test_never_more_replicas_than_brokers(self) -> None:
        assert {len(a) for a in plan_internal(ShardKind.GROUPS, image([broker(1)]), Chance(0, 0)).assignments} == {1}

    def test_the_settings_of_the_cluster(self) -> None:
        configs = {"num.partitions": "7", "replication.factor": "2", "min.isr": "1"}
        set_so = image([broker(n) for n in range(3)], None, **{f"offsets.topic.{k}": v for k, v in configs.items()})
        made = plan_internal(ShardKind.GROUPS, set_so, Chance(0, 0))
        assert [len(a) for a in made.assignments] == [2] * 7
        assert made.configs["min.insync.replicas"] == "1"

    @pytest.mark.parametrize(
        ("kind", "prefix"), [(ShardKind.GROUPS, "offsets.topic"), (ShardKind.TRANSACTIONS, "transaction.state.log")]
    )
    def test_both_are_compacted_in_segments_of_the_size_that_is_set(self, kind: ShardKind, prefix: str) -> None:
        set_so = image([broker(1)], None, **{f"{prefix}.segment.bytes": "65536"})
        configs = plan_internal(kind, set_so, Chance(0, 0)).configs
        assert (configs["cleanup.policy"], configs["segment.bytes"]) == ("compact", "65536")

    def test_it_waits_for_the_brokers_that_are_expected(self) -> None:
        few = image([broker(1), broker(2), broker(3, fenced=True)], None, **{"cluster.expected.brokers": "3"})
        with pytest.raises(CoordinatorNotAvailable, match=r"2 of 3 have joined.*cluster\.expected\.brokers") as refused:
            plan(few)
        assert refused.value.retriable

    def test_it_waits_for_a_broker_that_lives(self) -> None:
        with pytest.raises(CoordinatorNotAvailable, match="0 of 1"):
            plan(image([broker(1, fenced=True)]))


class TestRaising:
    def test_nothing_without_the_topic_or_without_more_brokers(self) -> None:
        assert add_replicas(image([broker(1), broker(2)])) == {}
        assert add_replicas(image([broker(1)], [(1,)] * 5)) == {}

    def test_two_brokers_join_one(self) -> None:
        targets = add_replicas(image([broker(n) for n in (1, 2, 3)], [(1,)] * 9))
        assert len(targets) == 9
        assert all(set(t) == {1, 2, 3} for t in targets.values())
        assert Counter(t[0] for t in targets.values()) == {1: 3, 2: 3, 3: 3}

    def test_what_has_enough_or_moves_already_stays(self) -> None:
        base = image([broker(n) for n in (1, 2, 3, 4)], [(1, 2, 3), (1, 2)])
        moving = replace(base.partitions[PartitionId(ID, 1)], removing=(NodeId(2),))
        assert add_replicas(replace(base, partitions={**base.partitions, moving.id: moving})) == {}

    def test_not_on_brokers_that_are_away_or_drained(self) -> None:
        assert add_replicas(image([broker(1), broker(2, fenced=True), broker(3, drained=True)], [(1,)])) == {}

    def test_other_racks_first(self) -> None:
        nodes = [broker(1, rack="a"), broker(2, rack="a"), broker(3, rack="b")]
        targets = add_replicas(image(nodes, [(1,)], **{"offsets.topic.replication.factor": "2"}))
        assert set(targets[PartitionId(ID, 0)]) == {1, 3}


@given(st.integers(1, 4), st.integers(0, 6), st.integers(1, 30), st.integers(1, 5))
def test_raised_once_it_is_enough_and_spread(first: int, more: int, partitions: int, factor: int) -> None:
    before = [tuple((n + k) % first for k in range(min(first, factor))) for n in range(partitions)]
    configs = {"offsets.topic.replication.factor": str(factor)}
    nodes = [broker(n) for n in range(first + more)]
    targets = add_replicas(image(nodes, before, **configs))
    now = [tuple(targets.get(PartitionId(ID, n), b)) for n, b in enumerate(before)]
    for old, new in zip(before, now, strict=True):
        assert len(new) == len(set(new)) == min(factor, first + more)
        assert set(old) <= set(new)
    assert add_replicas(image(nodes, now, **configs)) == {}  # ids are numbers


class TestAudit:
    WEEK_MS = 7 * 86_400_000

    def change(self, name: str, value: str = "", op: Op = Op.SET) -> list[Alteration]:
        topic = Topic("__audit", ID, 3, internal=True)
        return internal_changes(topic, [Alteration(name, op, value)], image([broker(1)]))

    def test_it_is_kept_for_three_months_and_nothing_else_deletes_of_it(self) -> None:
        made = plan_internal(ShardKind.AUDIT, image([broker(n) for n in range(4)]), Chance(5, 3)).topic(ID)
        assert (made.name, made.partition_count, made.internal) == ("__audit", 3, True)
        configs = dict(made.configs)
        assert (configs["cleanup.policy"], configs["compression.type"]) == ("delete", "zstd")
        assert (configs["retention.ms"], configs["retention.bytes"]) == (str(90 * 86_400_000), "-1")
        assert configs["unclean.leader.election.enable"] == "false"

    def test_it_is_kept_for_a_week_at_least(self) -> None:
        for value in (str(self.WEEK_MS), "-1", str(10 * self.WEEK_MS)):
            assert self.change("retention.ms", value)[0].value == value
        assert self.change("retention.ms", op=Op.DELETE)[0].value == str(90 * 86_400_000)
        for value in ("0", "1000", str(self.WEEK_MS - 1)):
            with pytest.raises(InvalidConfig, match="7 days at least"):
                self.change("retention.ms", value)

    @pytest.mark.parametrize("name", ["cleanup.policy", "retention.bytes", "max.message.bytes", "compression.type"])
    def test_nothing_else_shortens_it(self, name: str) -> None:
        with pytest.raises(InvalidTopic, match="the system's"):
            self.change(name, "1")

    def test_no_coordinator_has_shards_of_it(self) -> None:
        topic = Topic("__audit", ID, 3, internal=True)
        of = replace(image([broker(1)]), topics={ID: topic})
        assert counts(of) == {}
        assert tokens(topic, {0: {}}) == {}
