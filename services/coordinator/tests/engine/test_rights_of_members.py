"""A member's rights are those of the newest rules that the process has heard of, whatever its image shows yet."""

from __future__ import annotations

import pytest
from libs.common.tests.kit.access import ALICE, allow
from services.coordinator.tests.kit.dialogue import running_engine
from services.coordinator.tests.kit.ports import MemoryCluster
from services.coordinator.tests.kit.shard_logs import MemoryShardLogs

from headrace_common.core.access.control import Control, Rights
from headrace_common.core.access.resources import Operation, ResourceType, literal
from headrace_common.core.access.rows import Mode, View
from headrace_common.core.access.state import Access, Caller
from headrace_common.core.errors import GroupAuthorizationFailed
from headrace_coordinator.core.events import ConsumerHeartbeat
from headrace_coordinator.core.values import Subscription
from headrace_coordinator.engine.callers import CallersGroups

GROUP = "g"
READS = allow(ResourceType.GROUP, literal(GROUP), Operation.READ)


async def test_who_may_not_be_a_member_is_not_told_who_keeps_the_group() -> None:
    control = Control()
    control.renew(View(Mode.CLOSED, Access(1)))
    async with running_engine(MemoryCluster(shards=1), MemoryShardLogs(), access=control) as running:
        groups = CallersGroups(running.coordinator, Rights(control, Caller(ALICE)))
        with pytest.raises(GroupAuthorizationFailed):
            groups.open_stream(GROUP, "127.0.0.1:1")


async def test_a_right_that_was_taken_away_counts_from_the_next_request() -> None:
    control = Control()
    control.renew(View(Mode.CLOSED, Access(1, {ALICE: frozenset({READS})})))
    cluster = MemoryCluster(shards=1, topics={"t": 1})
    cluster.give(1, 0)
    async with running_engine(cluster, MemoryShardLogs(), access=control) as running:
        await running.until_served(0)
        groups = running.coordinator
        stream = CallersGroups(groups, Rights(control, Caller(ALICE))).open_stream(GROUP, "127.0.0.1:1")
        said = Subscription(frozenset({"t"}))
        join = ConsumerHeartbeat(GROUP, stream.number, groups.moment(), "m", 0, subscription=said, owned=())
        groups.say(stream, join)
        assert await stream.next_message() is not None
        control.renew(View(Mode.CLOSED, Access(2)))
        with pytest.raises(GroupAuthorizationFailed):
            groups.say(stream, join)
        control.renew(View(Mode.OPEN, Access(2)))
        groups.say(stream, join)
