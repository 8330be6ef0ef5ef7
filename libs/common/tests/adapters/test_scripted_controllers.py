"""A node's tie to controllers that say what a test has them say, over real gRPC: older, behind, silent, or moving."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from libs.common.tests.kit.scripted_controller import ScriptedController

from headrace_common.adapters.controller_calls import ControllerCalls
from headrace_common.adapters.controller_client import ControllerClient, Registration
from headrace_common.adapters.controller_route import ControllerRoute
from headrace_common.core.errors import (
    MetadataUnavailable,
    NetworkFailed,
    RequestTimedOut,
)
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.core.image import ClusterImage, ImageDelta, Node, NodeKey, Role
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.tasks import TaskRunner
from headrace_proto.v1 import controller_pb2 as pb

KEY = NodeKey(Role.BROKER, NodeId(1))
NODE = Node(KEY, Endpoint("127.0.0.1", 9292), b"i" * 16, -1)
DEAD = Endpoint("127.0.0.1", 1)


@asynccontextmanager
async def opened(*bootstrap: Endpoint) -> AsyncIterator[ControllerClient]:
    async with (
        TaskRunner() as tasks,
        ControllerClient.open(bootstrap, role=Role.BROKER, id=1, clock=SystemClock(), tasks=tasks) as client,
    ):
        yield client


@pytest.fixture
async def controller() -> AsyncIterator[ScriptedController]:
    async with ScriptedController().serve() as fake:
        yield fake


def at(fake: ScriptedController) -> Endpoint:
    assert fake.endpoint is not None
    return fake.endpoint


async def image_where(client: ControllerClient, condition: Callable[[ClusterImage], bool]) -> ClusterImage:
    async for image in client.images():
        if condition(image):
            return image
    raise AssertionError("images never end")


async def test_it_follows_who_answers_heartbeats(controller: ScriptedController) -> None:
    """A standby that is cut off from the store keeps its stream open and says nothing."""
    silent = ScriptedController()
    silent.active, silent.hint = False, str(at(controller))
    async with silent.serve(), opened(at(silent)) as client:
        silent.image = replace(silent.image, active_controller=None)
        await silent.until_called("WatchMetadata", 1)
        await client.register(Registration(NODE))
        await image_where(client, lambda i: KEY in i.nodes)
        controller.put_topic("news", 1)
        assert await image_where(client, lambda i: "news" in i.topic_ids) == controller.image


async def test_registration_and_heartbeats_tell_the_highest_feature_level(controller: ScriptedController) -> None:
    async with opened(at(controller)) as client:
        await client.register(Registration(replace(NODE, feature_level_max=3)))
        assert controller.registrations[0].node.feature_level_max == 3
        assert (await controller.until_beat()).feature_level_max == 3


async def test_a_busy_controller_is_asked_again(controller: ScriptedController) -> None:
    controller.refusals["RegisterNode"] = [MetadataUnavailable("etcd is away")] * 2
    async with opened(at(controller)) as client:
        await client.register(Registration(NODE))
    assert controller.calls.count("RegisterNode") == 3


async def test_each_registration_claims_what_is_known_then(controller: ScriptedController) -> None:
    known = (3, 1005)
    async with opened(at(controller)) as client:
        await client.register(Registration(NODE, claims=lambda: known))
        await client.wait_until_unfenced()
        known = (4, 2999)
        controller.change(removed_nodes=(KEY,))
        await image_where(client, lambda i: KEY in i.nodes and i.nodes[KEY].epoch == 2)
    claims = [(r.max_leader_epoch, r.max_producer_id) for r in controller.registrations]
    assert claims == [(3, 1005), (4, 2999)]
    assert controller.registrations[1].previous_epoch == 1
    assert controller.registrations[1].cluster_id == "test-cluster"
    assert controller.registrations[1].node.incarnation == b"i" * 16


async def test_a_stale_epoch_without_another_process_registers_again(controller: ScriptedController) -> None:
    async with opened(at(controller)) as client:
        await client.register(Registration(NODE))
        await client.wait_until_unfenced()
        own = controller.image.nodes[KEY]
        controller.change(nodes=(replace(own, epoch=own.epoch + 1, incarnation=own.incarnation),))
        await image_where(client, lambda i: KEY in i.nodes and i.nodes[KEY].epoch > own.epoch)
        while len(controller.registrations) < 2:
            await controller.until_beat()


async def test_a_gap_is_answered_with_a_new_snapshot(controller: ScriptedController) -> None:
    async with opened(at(controller)) as client:
        image = await image_where(client, lambda i: i.revision > 0)
        controller.send(ImageDelta(image.incarnation, image.revision + 5, image.revision + 6, image.cluster_id))
        controller.put_topic("after-gap", 1)
        assert await image_where(client, lambda i: "after-gap" in i.topic_ids) == controller.image


async def test_an_older_image_changes_nothing(controller: ScriptedController) -> None:
    async with opened(at(controller)) as client:
        controller.put_topic("kept", 1)
        held = await image_where(client, lambda i: "kept" in i.topic_ids)
        controller.image = replace(controller.image, revision=1, topics={}, topic_ids={}, partitions={})
        controller.break_streams()
        await controller.until_called("WatchMetadata", 4)
        assert client.image is held


async def test_heartbeats_go_on_while_the_event_loop_is_busy() -> None:
    """The client's loop is blocked in this thread; the controller runs in another."""
    ready: asyncio.Future[Endpoint] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()
    fake: list[ScriptedController] = []
    done = asyncio.Event()
    stop: list[Callable[[], object]] = []

    def run_controller() -> None:
        async def main() -> None:
            controller = ScriptedController()
            fake.append(controller)
            finished = asyncio.Event()
            inner = asyncio.get_running_loop()
            stop.append(lambda: inner.call_soon_threadsafe(finished.set))
            async with controller.serve():
                loop.call_soon_threadsafe(ready.set_result, at(controller))
                await finished.wait()
            loop.call_soon_threadsafe(done.set)

        asyncio.run(main())

    thread = asyncio.to_thread(run_controller)
    running = asyncio.ensure_future(thread)
    try:
        async with opened(await ready) as client:
            await client.register(Registration(NODE))
            await client.wait_until_unfenced()
            before = len(fake[0].beats)
            time.sleep(1.0)  # the loop is blocked on purpose
            assert len(fake[0].beats) >= before + 3
    finally:
        stop[0]()
        await running


async def test_confirmations_are_repeated(controller: ScriptedController) -> None:
    async with opened(at(controller)) as client:
        await client.register(Registration(NODE))
        controller.refusals["ConfirmDeletions"] = [MetadataUnavailable("etcd is away")]
        topic = controller.put_topic("gone", 1)
        await client.confirm_deletions([topic.topic_id])
        assert controller.confirmed == [topic.topic_id]


async def test_calls_give_up_when_nobody_is_active(controller: ScriptedController) -> None:
    async with opened(at(controller)) as client:
        await client.register(Registration(NODE))
        controller.active = False
        with pytest.raises(RequestTimedOut, match="no controller was active"):
            await client.allocate_producer_ids(timeout_ms=500)


class Mute(ScriptedController):
    """Takes requests for producer ids, and never answers them."""

    async def AllocateProducerIds(self, request: Any, context: Any) -> Any:
        self._entered("AllocateProducerIds")
        await asyncio.Event().wait()


def allocation(calls: ControllerCalls, *, repeatable: bool) -> asyncio.Task[pb.AllocateProducerIdsResponse]:
    request = pb.AllocateProducerIdsRequest()
    return asyncio.ensure_future(
        calls.active(
            lambda stub: stub.AllocateProducerIds,
            request,
            timeout_ms=60_000,
            repeatable=repeatable,
        )
    )


async def test_a_call_to_a_controller_that_moves_is_repeated_where_it_is_then(controller: ScriptedController) -> None:
    mute = Mute()
    async with mute.serve():
        route = ControllerRoute([at(mute)])
        calls = ControllerCalls(route, SystemClock())
        asked = allocation(calls, repeatable=True)
        await mute.until_called("AllocateProducerIds", 1)
        route.learned(at(controller), 2, [at(controller)])
        await calls.keep({at(controller)})
        assert (await asked).count == 1_000
        assert calls.addresses == {at(controller)}
        await calls.close()


async def test_channels_to_controllers_that_have_moved_are_closed(controller: ScriptedController) -> None:
    async with opened(DEAD, at(controller)) as client:
        await client.register(Registration(NODE))
        for port in range(10_001, 10_021):
            moved = Endpoint("127.0.0.2", port)
            client.calls.stub(moved)
            image = controller.change(nodes=(Node(NodeKey(Role.CONTROLLER, NodeId(7)), moved, b"c" * 16, port),))
            await image_where(client, lambda i, at_least=image.revision: i.revision >= at_least)
        controller.put_topic("news", 1)
        await image_where(client, lambda i: "news" in i.topic_ids)
        assert client.calls.addresses <= {DEAD, at(controller), moved}


async def test_a_call_that_must_not_be_repeated_says_that_its_outcome_is_unknown() -> None:
    mute = Mute()
    async with mute.serve():
        calls = ControllerCalls(ControllerRoute([at(mute)]), SystemClock())
        asked = allocation(calls, repeatable=False)
        await mute.until_called("AllocateProducerIds", 1)
        await calls.keep(())
        with pytest.raises(NetworkFailed, match="unknown"):
            await asked
        await calls.close()


async def test_it_says_once_that_an_older_controller_dropped_the_external_address(
    controller: ScriptedController, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(at(controller)) as client:
        await client.register(Registration(replace(NODE, external=Endpoint("headrace.example", 31_000))))
        held = controller.image.nodes[KEY]
        assert held.external is not None
        for number in range(3):
            controller.change(nodes=(replace(held, external=None, version=str(number)),))
        await image_where(client, lambda image: KEY in image.nodes and image.nodes[KEY].version == "2")
    warned = [r for r in caplog.records if "without the external address" in r.message]
    assert len(warned) == 1
