"""
No acknowledged record is lost over a restore of an older backup, in random histories of a model cluster; and decisions
that are wrong on purpose are found out by the same histories.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from services.controller.tests.kit.restore_model import BROKERS, NEW, Outcome, World, finished, lost, mirrored

from headrace_common.core.ids import NodeId
from headrace_common.core.image import Partition
from headrace_controller.core import restoring
from headrace_controller.core.held import HeldLog, HeldTopic, Holders, Inventories
from headrace_controller.core.mirror import Mirror

SEEDS = range(400)
MUTANT_SEEDS = range(400)


def played(seed: int, *, twice: bool = False) -> tuple[World, Mirror]:
    """A history with a backup somewhere in it, restored."""
    world = World(seed)
    before, after = world.chance.randint(5, 120), world.chance.randint(0, 160)
    for _ in range(before):
        world.step()
    backup = world.backup()
    for _ in range(after):
        world.step()
    return world, mirrored(backup, twice=twice)


def outcome_of(seed: int, asked: Callable[[Inventories], Inventories] = lambda i: i) -> tuple[World, Outcome]:
    world, mirror = played(seed)
    return world, finished(mirror, asked(world.inventories(mirror.image)))


def test_nothing_acknowledged_is_lost() -> None:
    told = acked = adopted = replaced = grown = 0
    for seed in SEEDS:
        world, outcome = outcome_of(seed)
        assert lost(world, outcome) == [], f"seed {seed}"
        told += len(outcome.plan.left)
        acked += sum(len(c.acked) for f in world.facts.values() for c in f.cells)
        adopted += sum(t.adopted for t in outcome.plan.topics)
        replaced += sum(t.adopted and t.was is not None for t in outcome.plan.topics)
        grown += sum(not t.adopted for t in outcome.plan.topics)
    assert min(acked // 1_000, adopted, replaced, grown) > 10, "the histories hold what this is about"


def test_nothing_is_lost_with_a_backup_that_was_made_before_a_restore_was_finished() -> None:
    for seed in range(150):
        world, mirror = played(seed, twice=True)
        for broker in BROKERS:  # topics that had no note got one from the first, unfinished restore
            for topic in mirror.image.topics.values():
                if any(topic.topic_id == i.topic_id for i in world.logs[broker]):
                    world.notes[broker].setdefault(topic.topic_id, HeldTopic(topic, NEW, 3))
        outcome = finished(mirror, world.inventories(mirror.image))
        assert lost(world, outcome) == [], f"seed {seed}"


def test_settings_that_came_after_the_backup_are_kept() -> None:
    for seed in SEEDS:
        world, outcome = outcome_of(seed)
        for name, fact in world.facts.items():
            holders = [b for b in BROKERS if fact.topic.topic_id in world.notes[b]]
            if any(world.notes[b][fact.topic.topic_id].topic == fact.topic for b in holders):
                assert outcome.topics[name].configs == fact.topic.configs, f"seed {seed}"


def test_a_restore_that_was_interrupted_decides_the_same() -> None:
    for seed in range(100):
        world, mirror = played(seed)
        inventories = world.inventories(mirror.image)
        whole = finished(mirror, inventories)
        some = {i for i in mirror.image.partitions if world.chance.random() < 0.5}
        asked = sorted(inventories)
        partitions = {
            i: restoring.decide_leaders(p, whole.plan.logs.get(i, {}), asked) if i in some else p
            for i, p in mirror.image.partitions.items()
        }
        mirror.image = replace(mirror.image, partitions=partitions)
        again = finished(mirror, inventories)
        assert again.partitions == whole.partitions, f"seed {seed}"
        assert again.topics == whole.topics


def finds(monkeypatch: pytest.MonkeyPatch, word: str, where: Any, name: str, wrong: Any) -> bool:
    """Whether a history complains with ``word`` of the decision that is wrong on purpose."""
    monkeypatch.setattr(where, name, wrong)
    return any(word in complaint for seed in MUTANT_SEEDS for complaint in lost(*outcome_of(seed)))


class TestMutants:
    def test_longest_by_end_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert finds(monkeypatch, "lost", HeldLog, "length", property(lambda log: (0, log.end)))

    def test_longest_by_epoch_only(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert finds(monkeypatch, "lost", HeldLog, "length", property(lambda log: (log.last_epoch, 0)))

    def test_strays_are_left(self, monkeypatch: pytest.MonkeyPatch) -> None:
        true = restoring.plan_topics

        def planned(*args: Any) -> restoring.Plan:
            plan = true(*args)
            return replace(plan, topics=tuple(t for t in plan.topics if not t.adopted))

        assert finds(monkeypatch, "not there", restoring, "plan_topics", planned)

    def test_partitions_added_after_the_backup_are_forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        true = restoring.plan_topics

        def planned(*args: Any) -> restoring.Plan:
            plan = true(*args)
            return replace(plan, topics=tuple(t for t in plan.topics if t.adopted))

        assert finds(monkeypatch, "partitions", restoring, "plan_topics", planned)

    def test_names_stay_with_the_backups_topic(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert finds(monkeypatch, "not there", restoring, "_replaces", lambda *_: False)

    def test_only_replicas_of_the_backup_are_compared(self, monkeypatch: pytest.MonkeyPatch) -> None:
        true = restoring.decide_leaders

        def decided(partition: Partition, holders: Holders, asked: list[NodeId], wanted: int = 0) -> Partition:
            known = {b: log for b, log in holders.items() if not partition.replicas or b in partition.replicas}
            return true(partition, known, asked, wanted)

        assert finds(monkeypatch, "lost", restoring, "decide_leaders", decided)

    def test_the_first_replica_leads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        true = restoring.decide_leaders

        def decided(partition: Partition, holders: Holders, asked: list[NodeId], wanted: int = 0) -> Partition:
            if partition.elr:
                return partition
            new = true(partition, holders, asked, wanted)
            return replace(new, elr=new.replicas[:1])

        assert finds(monkeypatch, "lost", restoring, "decide_leaders", decided)

    def test_damaged_logs_lead_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        true = restoring.decide_leaders

        def decided(partition: Partition, holders: Holders, asked: list[NodeId], wanted: int = 0) -> Partition:
            whole = {b: replace(log, damaged=False) for b, log in holders.items()}
            return true(partition, whole, asked, wanted)

        assert finds(monkeypatch, "damaged", restoring, "decide_leaders", decided)

    def test_epochs_of_the_backup_go_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        true = restoring.decide_leaders

        def decided(partition: Partition, holders: Holders, asked: list[NodeId], wanted: int = 0) -> Partition:
            new = true(partition, holders, asked, wanted)
            return new if new is partition else replace(new, leader_epoch=max(partition.leader_epoch, 0))

        assert finds(monkeypatch, "epoch", restoring, "decide_leaders", decided)

    def test_a_broker_is_not_waited_for(self) -> None:
        for seed in MUTANT_SEEDS:
            for missing in BROKERS:
                some = lambda all, missing=missing: {b: i for b, i in all.items() if b != missing}  # noqa: E731
                world, outcome = outcome_of(seed, some)
                if any("lost" in c for c in lost(world, outcome)):
                    return
        raise AssertionError("it makes no difference to leave a broker out")


class TestTrustInTheBackup:
    def test_its_in_sync_replicas_would_lose(self) -> None:
        """What the backup says of leaders is not believed, since it would be wrong."""
        for seed in MUTANT_SEEDS:
            world = World(seed)
            for _ in range(80):
                world.step()
            stored = {
                world.as_metadata(f, n, c).id: c.leader for f in world.facts.values() for n, c in enumerate(f.cells)
            }
            mirror = mirrored(world.backup())
            for _ in range(120):
                world.step()
            outcome = finished(mirror, world.inventories(mirror.image))
            for id, leader in stored.items():
                if id in outcome.partitions:
                    outcome.partitions[id] = replace(outcome.partitions[id], leader=leader)
            if any("lost" in c for c in lost(world, outcome)):
                return
        raise AssertionError("no history shows it")
