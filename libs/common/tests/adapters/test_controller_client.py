"""A node's tie to its controllers: to those of a cluster in the lab."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from libs.common.tests.kit.lab_node import open_tie, wait_for_image

from headrace_common.adapters.controller_client import ControllerClient, Registration
from headrace_common.adapters.controller_heartbeat import Beat, HeartbeatTalk
from headrace_common.adapters.controller_route import ControllerRoute
from headrace_common.core.errors import (
    DuplicateRegistration,
    InconsistentClusterId,
    NotRegistered,
    UnsupportedVersion,
)
from headrace_common.core.features import OWNER_TIMES
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import Node, NodeKey, Role
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.tasks import TaskRunner
from headrace_lab.cluster import Cluster
from headrace_lab.nodes import address
from headrace_lab.testing import lab
from headrace_proto.v1 import cluster_pb2
from headrace_proto.v1 import controller_pb2 as pb

SEED = 7
SESSION_S = 20.0
"""After which a node that is not heard of any more is fenced."""
KEY = NodeKey(Role.BROKER, NodeId(2))
NODE = Node(KEY, Endpoint("127.0.0.1", 9292), b"i" * 16, -1, feature_level_max=9)
NOBODY = Endpoint("nobody.localhost", 1)


@asynccontextmanager
async def opened(*bootstrap: Endpoint) -> AsyncIterator[tuple[Cluster, ControllerClient]]:
    """A cluster of broker 1, and the tie of another."""
    async with lab(SEED, coordinators=0) as cluster, open_tie(cluster, Role.BROKER, 2, *bootstrap) as client:
        yield cluster, client


async def join(client: ControllerClient) -> None:
    """It takes part when this returns."""
    await client.register(Registration(NODE))
    await client.wait_until_unfenced()


async def create(cluster: Cluster, name: str, *replicas: int) -> None:
    """A topic of one partition."""
    async with cluster.admin() as admin:
        await admin.create_topic(name, assignments=[list(replicas or (1,))])


async def test_registers_is_unfenced_and_follows() -> None:
    async with opened() as (cluster, client):
        registered = await client.register(Registration(NODE))
        await client.wait_until_unfenced()
        await create(cluster, "t", 2)
        image = await wait_for_image(client, lambda i: "t" in i.topic_ids)
        assert (image.cluster_id, image.nodes[KEY].epoch) == (registered.cluster_id, registered.epoch)
        assert client.image is image


async def test_stays_fenced_until_storage_is_ready() -> None:
    async with opened() as (_, client):
        await client.register(Registration(NODE), want_fenced=True)
        await asyncio.sleep(SESSION_S)
        assert client.fenced
        assert client.image.nodes[KEY].fenced
        client.want_unfenced()
        await client.wait_until_unfenced()


async def test_a_standby_points_to_the_active_controller() -> None:
    async with lab(SEED, coordinators=0, controllers=2) as cluster:
        async with open_tie(cluster, Role.BROKER, 3) as client:
            active = (await wait_for_image(client, lambda i: i.active_controller is not None)).active_controller
        assert active is not None
        async with open_tie(cluster, Role.BROKER, 2, address(f"controller-{3 - active.id}")) as client:
            await join(client)


async def test_a_dead_bootstrap_entry_is_passed_over() -> None:
    async with opened(NOBODY, address("controller-1")) as (_, client):
        await join(client)


async def test_registration_waits_until_a_controller_answers() -> None:
    async with opened() as (cluster, client):
        cluster.kill(controller=1)
        joining = asyncio.ensure_future(client.register(Registration(NODE)))
        await asyncio.sleep(60)
        assert not joining.done()
        cluster.restart(controller=1)
        assert (await joining).epoch > 0


async def test_registration_waits_until_the_store_of_metadata_answers() -> None:
    async with opened() as (cluster, client):
        cluster.store.reachable = False
        joining = asyncio.ensure_future(client.register(Registration(NODE)))
        await asyncio.sleep(60)
        assert not joining.done()
        cluster.store.reachable = True
        await joining


async def test_the_image_follows_the_feature_level_and_a_node_below_it_is_refused_at_once() -> None:
    async with opened() as (_, client):
        image = await wait_for_image(client, lambda i: i.feature_level > 0)
        assert image.has(OWNER_TIMES)
        with pytest.raises(UnsupportedVersion, match="start the newer version again"):
            await client.register(Registration(replace(NODE, feature_level_max=0)))


async def test_data_of_another_cluster_is_refused_at_once() -> None:
    async with opened() as (_, client):
        with pytest.raises(InconsistentClusterId):
            await client.register(Registration(NODE, cluster_id="x"))


async def test_another_process_with_this_id_stops_this_one() -> None:
    async with (
        lab(SEED, coordinators=0) as cluster,
        TaskRunner() as tasks,
        open_tie(cluster, Role.BROKER, 2, tasks=tasks) as client,
    ):
        await join(client)
        cluster.cut("test", "controller-1")
        other = asyncio.get_running_loop().create_task(take_over(cluster), context=cluster.lab.node("other").context)
        await asyncio.sleep(SESSION_S)
        assert not other.done()
        assert tasks.failure is None
        cluster.heal()
        async with asyncio.timeout(60):
            await tasks.failed.wait()
        assert isinstance(tasks.failure, DuplicateRegistration)


async def take_over(cluster: Cluster) -> None:
    """Another process registers with the same id, and lives."""
    async with open_tie(cluster, Role.BROKER, 2) as other:
        await other.register(Registration(replace(NODE, incarnation=b"o" * 16)))
        await asyncio.Event().wait()


async def test_a_forgotten_node_registers_again_as_the_same_process() -> None:
    async with opened() as (cluster, client):
        first = await client.register(Registration(NODE))
        await client.wait_until_unfenced()
        cluster.cut("test", "controller-1")
        await asyncio.sleep(SESSION_S)
        async with cluster.admin() as admin:
            forget = pb.UnregisterNodeRequest(role=cluster_pb2.BROKER, id=2)
            await admin.ask("UnregisterNode", forget, change=True)
        cluster.heal()
        image = await wait_for_image(client, lambda i: KEY in i.nodes and i.nodes[KEY].epoch > first.epoch)
        assert image.nodes[KEY].incarnation == NODE.incarnation
        await client.wait_until_unfenced()
        assert client.registered is not None
        assert client.registered.epoch == image.nodes[KEY].epoch


async def test_producer_ids_are_given_to_those_who_have_registered() -> None:
    async with opened() as (_, client):
        with pytest.raises(NotRegistered):
            await client.allocate_producer_ids()
        await join(client)
        first, second = await client.allocate_producer_ids(), await client.allocate_producer_ids()
        assert len(first) == len(second) > 0
        assert not set(first) & set(second)


async def test_a_broken_stream_is_taken_up_again() -> None:
    async with opened() as (cluster, client):
        await wait_for_image(client, lambda i: i.revision > 0)
        cluster.reset("test", "controller-1")
        await create(cluster, "later")
        await wait_for_image(client, lambda i: "later" in i.topic_ids)


async def test_a_stream_that_is_closed_under_it_is_taken_up_again() -> None:
    async with opened() as (cluster, client):
        await join(client)
        await client.calls.keep(())
        await create(cluster, "news")
        await wait_for_image(client, lambda i: "news" in i.topic_ids)


async def test_a_slow_reader_gets_the_newest_only() -> None:
    async with opened() as (cluster, client):
        images = client.images()
        await anext(images)
        for n in range(20):
            await create(cluster, f"t{n}")
        await wait_for_image(client, lambda i: len(i.topics) == 20)
        assert len((await anext(images)).topics) == 20


async def test_leaving_waits_until_nothing_depends_on_the_node() -> None:
    async with opened() as (cluster, client):
        await join(client)
        await create(cluster, "t", 2, 1)
        assert await client.leave(20_000)
        image = await wait_for_image(client, lambda i: i.nodes[KEY].fenced)
        assert [partition.leader for partition in image.partitions.values()] == [1]


async def test_leaving_is_bounded() -> None:
    async with opened() as (cluster, client):
        await join(client)
        cluster.pause(controller=1)
        began_ms = SystemClock().monotonic_ms()
        assert not await client.leave(100)
        assert SystemClock().monotonic_ms() - began_ms < 200


async def test_unregistering_removes_the_node() -> None:
    key = NodeKey(Role.ADMIN, NodeId(9))
    async with lab(SEED, coordinators=0) as cluster, open_tie(cluster, Role.ADMIN, 9) as client:
        await client.register(Registration(replace(NODE, key=key)))
        await wait_for_image(client, lambda i: key in i.nodes)
        assert await client.leave(20_000)
        await client.unregister()
        await wait_for_image(client, lambda i: key not in i.nodes)


async def test_contact_is_when_the_answered_heartbeat_was_sent() -> None:
    async with opened() as (cluster, client):
        assert client.contact_ms is None
        before = SystemClock().monotonic_ms()
        await join(client)
        first = client.contact_ms
        assert first is not None
        assert before <= first <= SystemClock().monotonic_ms()
        cluster.pause(controller=1)
        await asyncio.sleep(5)  # beats are sent, and not answered
        held = client.contact_ms
        assert held is not None
        assert held <= SystemClock().monotonic_ms() - 4_000
        cluster.delay("test", "controller-1", ms=(500, 500))
        cluster.resume(controller=1)
        while client.contact_ms == held:
            await asyncio.sleep(0.01)
        assert held < client.contact_ms <= SystemClock().monotonic_ms() - 1_000, "it went there and back"


async def test_keys_are_wanted_by_one_early_heartbeat_and_then_by_those_that_go_anyway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, said = SystemClock(), list[tuple[float, list[str]]]()
    request = HeartbeatTalk.request

    def spy(talk: HeartbeatTalk, beat: Beat) -> pb.HeartbeatRequest:
        made = request(talk, beat)
        if made.id == KEY.id:
            said.append((clock.monotonic_ms(), list(made.keys_wanted)))
        return made

    async with opened() as (_, client):
        await join(client)
        await asyncio.sleep(5)
        monkeypatch.setattr(HeartbeatTalk, "request", spy)
        begun_ms = clock.monotonic_ms()
        for _ in range(50):
            client.want_keys("idp")
        await asyncio.sleep(0.1)
        assert [wanted for _, wanted in said] == [["idp"]], "early, and once"
        client.want_keys("idp")
        client.want_keys("other")
        await asyncio.sleep(0.1)
        assert [sorted(wanted) for _, wanted in said] == [["idp"], ["idp", "other"]], "each is early once"
        client.want_keys("idp")
        await asyncio.sleep(10)
        later = [(at_ms - begun_ms, wanted) for at_ms, wanted in said[2:]]
        assert later[0][0] > 1_000, "not early"
        assert [wanted for _, wanted in later] == [["idp"], *[[]] * (len(later) - 1)], "until it was answered"
        await asyncio.sleep(30)
        said.clear()
        client.want_keys("idp")
        await asyncio.sleep(0.1)
        assert [wanted for _, wanted in said] == [["idp"]], "early again"


async def test_what_a_controller_did_not_hear_is_wanted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as (cluster, client):
        await join(client)
        cluster.pause(controller=1)
        client.want_keys("idp")
        await asyncio.sleep(5)
        assert client._beats.beat.keys_wanted == ("idp",)
        cluster.resume(controller=1)
        await asyncio.sleep(10)
        assert client._beats.beat.keys_wanted == ()


class TestRoute:
    A, B, C = Endpoint("a", 1), Endpoint("b", 1), Endpoint("c", 1)

    def test_goes_round_the_bootstrap_list(self) -> None:
        route = ControllerRoute([self.A, self.B])
        seen = []
        for _ in range(3):
            seen.append(route.target())
            route.failed(seen[-1])
        assert seen == [self.A, self.B, self.A]

    def test_a_hint_wins_until_it_fails(self) -> None:
        route = ControllerRoute([self.A, self.B])
        assert route.moved(self.A, "c:1")
        assert route.target() == self.C
        route.failed(self.C)
        assert route.target() in {self.A, self.B}

    def test_an_own_or_broken_hint_is_no_help(self) -> None:
        route = ControllerRoute([self.A, self.B])
        assert not route.moved(self.A, "a:1")
        assert route.target() == self.B
        assert not route.moved(self.B, "nonsense")
        assert not route.moved(self.A, None)

    def test_a_late_failure_does_not_undo_a_newer_hint(self) -> None:
        route = ControllerRoute([self.A, self.B])
        route.moved(self.A, "c:1")
        route.failed(self.A)
        assert route.target() == self.C

    def test_an_image_of_a_known_epoch_does_not_undo_a_hint(self) -> None:
        route = ControllerRoute([self.A])
        route.learned(self.A, 3)
        route.moved(self.A, "b:1")
        route.learned(self.A, 3)
        assert route.target() == self.B
        route.learned(self.C, 4)
        assert route.target() == self.C

    def test_controllers_of_the_image_are_tried_too(self) -> None:
        route = ControllerRoute([self.A])
        route.learned(None, -1, [self.A, self.B])
        route.failed(self.A)
        assert route.target() == self.B

    def test_an_empty_list_is_refused(self) -> None:
        with pytest.raises(ValueError, match="host:port"):
            ControllerRoute([])
