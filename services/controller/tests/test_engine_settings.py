"""Settings that say when records are deleted and compacted: what is refused, what is inherited, whose they are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from services.controller.tests.kit.dialogue import Cell, broker, cell

from headrace_common.core.errors import InvalidConfig, InvalidTopic
from headrace_common.core.features import REQUIRED_FENCES
from headrace_common.core.ids import NodeId
from headrace_common.core.image import INTERNAL_TOPICS, ShardKind
from headrace_controller.core.internal_topics import ALTERABLE
from headrace_controller.core.settings import Alteration, BrokerResource, Entry, Op, Resource, Source, TopicResource
from headrace_controller.core.topics import Wanted
from headrace_controller.engine.controller import ControllerEngine
from headrace_controller.engine.nodes import Joining
from headrace_controller.ports import ProbeResult

EVERYONE = BrokerResource(None)
T = TopicResource("t")
LOW, HIGH = "min.compaction.lag.ms", "max.compaction.lag.ms"


@pytest.fixture
async def world() -> AsyncIterator[Cell]:
    async with cell() as made:
        yield made


@pytest.fixture
async def engine(world: Cell) -> ControllerEngine:
    """With a broker and the topic ``t``."""
    engine = await world.active()
    await world.join(engine, broker(1))
    await engine.create_topic(Wanted("t", 1, 1), validate_only=False, timeout_ms=10_000)
    return engine


async def alter(
    engine: ControllerEngine, whose: Resource, op: Op = Op.SET, *, dry: bool = False, **changes: str
) -> list[Entry]:
    asked = [Alteration(name.replace("_", "."), op, value) for name, value in changes.items()]
    return await engine.alter_configs(whose, asked, validate_only=dry)


async def change(engine: ControllerEngine, whose: Resource, name: str, value: str, op: Op = Op.SET) -> None:
    await engine.alter_configs(whose, [Alteration(name, op, value)], validate_only=False)


def value(engine: ControllerEngine, whose: Resource, name: str) -> tuple[str, Source]:
    entry = next(e for e in engine.describe_configs(whose) if e.setting.name == name)
    return entry.value, entry.source


class TestLags:
    """A record that must be compacted before it may be is nobody's wish."""

    async def test_the_two_in_one_request(self, engine: ControllerEngine) -> None:
        with pytest.raises(InvalidConfig, match=r"min\.compaction\.lag\.ms=20 is above max\.compaction\.lag\.ms=10"):
            await alter(engine, T, min_compaction_lag_ms="20", max_compaction_lag_ms="10")
        await alter(engine, T, min_compaction_lag_ms="10", max_compaction_lag_ms="10")

    @pytest.mark.parametrize(("first", "then"), [((LOW, "20"), (HIGH, "10")), ((HIGH, "10"), (LOW, "20"))])
    async def test_one_set_before(
        self, engine: ControllerEngine, first: tuple[str, str], then: tuple[str, str]
    ) -> None:
        await change(engine, T, *first)
        with pytest.raises(InvalidConfig, match="lower the first or raise the second"):
            await change(engine, T, *then)
        assert value(engine, T, then[0])[1] is Source.DEFAULT

    async def test_one_inherited(self, engine: ControllerEngine) -> None:
        await change(engine, EVERYONE, "log.cleaner.max.compaction.lag.ms", "10")
        with pytest.raises(InvalidConfig, match=r"is above log\.cleaner\.max\.compaction\.lag\.ms=10"):
            await change(engine, T, LOW, "20")
        with pytest.raises(InvalidConfig, match="is above"):
            await engine.create_topic(Wanted("u", 1, 1, {LOW: "20"}), validate_only=True, timeout_ms=1_000)
        await alter(engine, T, min_compaction_lag_ms="20", max_compaction_lag_ms="30")
        with pytest.raises(InvalidConfig, match="is above"):
            await change(engine, T, HIGH, "", Op.DELETE)

    async def test_the_cluster_cannot_contradict_a_topic(self, engine: ControllerEngine) -> None:
        await change(engine, T, LOW, "20")
        with pytest.raises(InvalidConfig, match=r"topic t would contradict it: min\.compaction\.lag\.ms=20"):
            await change(engine, EVERYONE, "log.cleaner.max.compaction.lag.ms", "10")
        with pytest.raises(InvalidConfig, match=r"log\.cleaner\.min\.compaction\.lag\.ms=9 is above"):
            await alter(engine, EVERYONE, log_cleaner_max_compaction_lag_ms="8", log_cleaner_min_compaction_lag_ms="9")

    async def test_nor_can_one_broker(self, engine: ControllerEngine) -> None:
        await change(engine, EVERYONE, "log.cleaner.min.compaction.lag.ms", "20")
        with pytest.raises(InvalidConfig, match="is above"):
            await change(engine, BrokerResource(NodeId(1)), "log.cleaner.max.compaction.lag.ms", "10")


class TestPolicy:
    async def test_append_takes_what_is_inherited(self, engine: ControllerEngine) -> None:
        await change(engine, EVERYONE, "log.cleanup.policy", "compact")
        assert value(engine, T, "cleanup.policy") == ("compact", Source.CLUSTER)
        await change(engine, T, "cleanup.policy", "delete", Op.APPEND)
        assert value(engine, T, "cleanup.policy") == ("compact,delete", Source.TOPIC)
        await change(engine, T, "cleanup.policy", "compact", Op.SUBTRACT)
        assert value(engine, T, "cleanup.policy") == ("delete", Source.TOPIC)

    async def test_nothing_is_left(self, engine: ControllerEngine) -> None:
        for op in (Op.SET, Op.SUBTRACT):
            with pytest.raises(InvalidConfig, match="cannot be empty; it takes delete, compact, or both"):
                await change(engine, T, "cleanup.policy", "" if op is Op.SET else "delete", op)


class TestWhose:
    @pytest.mark.parametrize("name", ["num.partitions", "log.cleanup.policy", "offsets.topic.segment.bytes"])
    async def test_what_is_the_clusters_is_not_one_brokers(self, engine: ControllerEngine, name: str) -> None:
        given = "compact" if "policy" in name else "2048"
        with pytest.raises(InvalidConfig, match=f"{name}: the same for all brokers"):
            await change(engine, BrokerResource(NodeId(1)), name, given)
        await change(engine, EVERYONE, name, given)
        assert value(engine, BrokerResource(NodeId(1)), name) == (given, Source.CLUSTER)

    async def test_the_cleaner_of_one_broker(self, engine: ControllerEngine) -> None:
        one = BrokerResource(NodeId(1))
        await change(engine, EVERYONE, "log.cleaner.io.max.bytes.per.second", "1e6")
        await change(engine, one, "log.cleaner.io.max.bytes.per.second", "1.7976931348623157E308")
        assert value(engine, one, "log.cleaner.io.max.bytes.per.second")[1] is Source.BROKER

    async def test_names_of_the_other_kind(self, engine: ControllerEngine) -> None:
        with pytest.raises(InvalidConfig, match=r"for one topic it is retention\.ms"):
            await change(engine, T, "log.retention.ms", "1")
        with pytest.raises(InvalidConfig, match=r"the default of all topics is log\.retention\.ms"):
            await change(engine, EVERYONE, "retention.ms", "1")


class TestInternal:
    @pytest.fixture
    async def topic(self, engine: ControllerEngine) -> TopicResource:
        await engine.ensure_internal_topic(ShardKind.GROUPS)
        return TopicResource(INTERNAL_TOPICS[ShardKind.GROUPS])

    @pytest.mark.parametrize(
        ("name", "given"),
        [
            ("cleanup.policy", "delete"),
            ("retention.ms", "1"),
            ("min.compaction.lag.ms", "9"),
            ("max.message.bytes", "1"),
            ("message.timestamp.type", "LogAppendTime"),
            ("unclean.leader.election.enable", "true"),
        ],
    )
    async def test_what_is_the_systems(
        self, engine: ControllerEngine, topic: TopicResource, name: str, given: str
    ) -> None:
        before = [(e.setting.name, e.value) for e in engine.describe_configs(topic)]
        for op in (Op.SET, Op.DELETE):
            with pytest.raises(InvalidTopic, match=rf"internal: {name} is the system's; it takes max\.compaction\.lag"):
                await change(engine, topic, name, given, op)
        assert [(e.setting.name, e.value) for e in engine.describe_configs(topic)] == before

    async def test_what_users_may_set(self, engine: ControllerEngine, topic: TopicResource) -> None:
        given = {name: "0.25" if "ratio" in name else "2000" for name in ALTERABLE}
        for name, text in given.items():
            await change(engine, topic, name, text)
            assert value(engine, topic, name) == (text, Source.TOPIC)

    async def test_the_default_is_what_it_was_made_with(self, engine: ControllerEngine, topic: TopicResource) -> None:
        await change(engine, topic, "segment.bytes", "4096")
        await change(engine, topic, "segment.bytes", "", Op.DELETE)
        assert value(engine, topic, "segment.bytes") == ("104857600", Source.TOPIC)
        await change(engine, topic, "segment.ms", "5000")
        await change(engine, topic, "segment.ms", "", Op.DELETE)
        assert value(engine, topic, "segment.ms")[1] is Source.DEFAULT


class TestFeatureLevel:
    """A broker of a version before a setting would not go by it."""

    async def test_a_setting_waits_for_the_level_that_it_came_with(self, world: Cell) -> None:
        engine = await world.active()
        old = replace(broker(1), feature_level_max=REQUIRED_FENCES.level - 1)
        await world.join(engine, old)
        await engine.create_topic(Wanted("t", 1, 1), validate_only=False, timeout_ms=10_000)
        too_early = r"fencing\.required needs feature level 5 and the cluster is at 4; .*`headrace cluster features`"
        await world.until(lambda: engine.image.feature_level == REQUIRED_FENCES.level - 1)
        for given in ("true", "false"):
            with pytest.raises(InvalidConfig, match=too_early):
                await change(engine, T, "fencing.required", given)
        wanted = Wanted("u", 1, 1, {"fencing.required": "true"})
        with pytest.raises(InvalidConfig, match=too_early):
            await engine.create_topic(wanted, validate_only=True, timeout_ms=1_000)
        await change(engine, T, "fencing.required", "", Op.DELETE)
        assert value(engine, T, "fencing.required") == ("false", Source.DEFAULT)

        world.probe.results[old.key] = ProbeResult.REFUSED
        await engine.register(Joining(replace(old, incarnation=b"n" * 16, feature_level_max=REQUIRED_FENCES.level)))
        await world.until(lambda: engine.image.has(REQUIRED_FENCES))
        await change(engine, T, "fencing.required", "true")
        assert value(engine, T, "fencing.required") == ("true", Source.TOPIC)
