"""Programs of streams over REST: a group of the lab has their tasks, and a worker answers over gRPC."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from libs.sdk.tests.kit.cluster import LabCluster
from services.admin.tests.kit.rest import Rest
from services.admin.tests.test_rest_groups import refused

from headrace import aio
from headrace.work_types import WorkItem
from headrace_admin.engine.streams import owner_of
from headrace_admin.ports import StoreFacts
from headrace_admin.rpc.rest_streams import plain
from headrace_common.core.errors import NetworkFailed, NotCoordinator, Rejected
from headrace_common.core.ids import Endpoint
from headrace_common.core.worker_address import WorkerAddress
from headrace_proto.v1 import streams_pb2 as pb

AT = WorkerAddress(Endpoint("10.0.0.1", 9500))
NEXT = WorkerAddress(Endpoint("10.0.0.2", 9500))
ITEMS = [WorkItem("orders/0", stateful=True), WorkItem("orders/1", stateful=True)]
KEY = "/v1/streams/billing/stores/totals/keys/ann?column=x/y"
ROWS = {b'["ann","x/y"]': [{"user": "ann", "n": 3}]}


class Worker:
    """In place of the adapter."""

    def __init__(self, group: aio.WorkGroup) -> None:
        self.group = group
        """Of which it is a member."""
        self.asked: list[WorkerAddress] = []
        self.moves = 0
        """So many questions come while the task moves."""
        self.dead: set[WorkerAddress] = set()
        self.silent = False
        """Whether it never answers for rows."""

    async def stores(self, app: str, at: WorkerAddress) -> list[StoreFacts]:
        self.asked.append(at)
        if at in self.dead:
            raise NetworkFailed("Connection refused")
        return [StoreFacts("totals", "orders", 2, {"user": "string", "page": "string"}), StoreFacts("seen", "x", 1, {})]

    async def locate(self, app: str, at: WorkerAddress, request: pb.LocateKeyRequest) -> pb.LocateKeyResponse:
        if len(request.columns) != 2:
            raise Rejected("the keys of 'totals' are: user string, page string; 1 value was given")
        return pb.LocateKeyResponse(key=str(list(request.columns)).replace("'", '"').replace(", ", ",").encode())

    async def rows(self, app: str, at: WorkerAddress, request: pb.QueryStoreRequest) -> list[dict[str, Any]]:
        self.asked.append(at)
        if self.silent:
            await asyncio.Event().wait()
        if self.moves:
            self.moves -= 1
            raise NotCoordinator("task orders/0 is not at this worker now")
        assert (request.store, request.partition) == ("totals", 0)
        return ROWS.get(request.key, [])

    async def close(self) -> None:
        pass


@pytest.fixture
async def worker(lab: LabCluster, rest: Rest) -> AsyncIterator[Worker]:
    """App billing, whose one worker has both tasks."""
    for topic in ("orders", "billing.orders.changelog", "billing.by-user.repartition", "other.orders.changelog"):
        lab.create_topic(topic, 1)
    await rest.world.make_shards()
    async with lab.aio_work_group("billing", ITEMS, endpoint=str(AT)) as group:
        made = Worker(group)
        for name in ("stores", "locate", "rows"):
            setattr(rest.world.workers, name, getattr(made, name))
        while not await has_all(rest, group):
            pass
        yield made


async def has_all(rest: Rest, group: aio.WorkGroup) -> bool:
    await group.poll(100)
    tasks = (await rest.client.get("/v1/streams/billing/tasks")).json().get("tasks")
    return bool(tasks) and all(task["owner"] for task in tasks)


async def test_apps_tasks_and_stores(rest: Rest, worker: Worker) -> None:
    assert (await rest.client.get("/v1/streams")).json() == {
        "apps": [
            {"app": "billing", "members": 1, "topics": ["billing.by-user.repartition", "billing.orders.changelog"]}
        ]
    }
    tasks = (await rest.client.get("/v1/streams/billing/tasks")).json()
    assert tasks["app"] == "billing"
    assert [(t["task"], t["stateful"], t["endpoint"], t["standbys"]) for t in tasks["tasks"]] == [
        ("orders/0", True, str(AT), []),
        ("orders/1", True, str(AT), []),
    ]
    assert all(task["epoch"] > 0 for task in tasks["tasks"])
    assert (await rest.client.get("/v1/streams/billing/stores")).json() == {
        "app": "billing",
        "stores": [
            {
                "store": "totals",
                "sub_topology": "orders",
                "partitions": 2,
                "key_columns": [{"name": "user", "type": "string"}, {"name": "page", "type": "string"}],
            },
            {"store": "seen", "sub_topology": "x", "partitions": 1, "key_columns": []},
        ],
    }
    assert worker.asked == [AT]


async def test_a_key_is_read_from_the_worker_that_has_it(rest: Rest, worker: Worker) -> None:
    worker.moves = 100
    began_ms = rest.world.clock.monotonic_ms()
    answer = await rest.client.get(KEY)
    assert answer.json() == {"app": "billing", "store": "totals", "rows": [{"user": "ann", "n": 3}]}
    assert worker.moves == 0
    assert 20_000 <= rest.world.clock.monotonic_ms() - began_ms < 30_000


async def test_the_next_worker_is_asked_when_one_has_died(lab: LabCluster, rest: Rest, worker: Worker) -> None:
    worker.dead.add(AT)
    question = asyncio.create_task(rest.client.get(KEY))
    await rest.world.clock.sleep_ms(5_000)
    assert not question.done()
    await worker.group.close()
    async with lab.aio_work_group("billing", ITEMS, endpoint=str(NEXT)) as group:
        while not await has_all(rest, group):
            pass
        answer = await question
    assert answer.json()["rows"] == [{"user": "ann", "n": 3}]
    assert worker.asked[-1] == NEXT


@pytest.mark.parametrize("silent", [False, True])
async def test_a_question_ends_after_30_s(rest: Rest, worker: Worker, silent: bool) -> None:
    worker.moves = 1_000
    worker.silent = silent
    began_ms = rest.world.clock.monotonic_ms()
    answer = await rest.client.get(KEY)
    assert 29_000 < rest.world.clock.monotonic_ms() - began_ms < 31_000
    if silent:
        refused(answer, 504, "REQUEST_TIMED_OUT", "no worker of billing answered within 30 s")
    else:
        refused(answer, 503, "NOT_COORDINATOR", "task orders/0 is not at this worker now")


async def test_what_is_not_there_is_a_problem(rest: Rest, worker: Worker) -> None:
    get = rest.client.get
    nothing = await get("/v1/streams/billing/stores/totals/keys/bob?column=z")
    refused(nothing, 404, "RESOURCE_NOT_FOUND", "billing has nothing in 'totals' for the key bob, z")
    none = await get("/v1/streams/billing/stores/none/keys/bob")
    refused(none, 404, "RESOURCE_NOT_FOUND", "billing has no store 'none'; there are: totals, seen")
    refused(await get("/v1/streams/billing/stores/totals/keys/bob"), 400, "INVALID_REQUEST", "user string, page string")
    for path in ("tasks", "stores", "stores/totals/keys/bob"):
        refused(await get(f"/v1/streams/nope/{path}"), 404, "GROUP_ID_NOT_FOUND")
    await rest.world.commit("g", {("orders", 0): 0})
    refused(await get("/v1/streams/g/tasks"), 404, "RESOURCE_NOT_FOUND", "'g' is no app of streams")


async def test_workers_that_do_not_listen(lab: LabCluster, rest: Rest) -> None:
    await rest.world.make_shards()
    async with lab.aio_work_group("quiet", [WorkItem("orders/0")]) as group:
        while not await group.poll(100):
            pass
        answer = await rest.client.get("/v1/streams/quiet/stores")
        refused(answer, 400, "INVALID_REQUEST", "start them with --query-listen HOST:PORT")
    began_ms = rest.world.clock.monotonic_ms()
    answer = await rest.client.get("/v1/streams/quiet/stores")
    refused(answer, 503, "LEADER_NOT_AVAILABLE", "no worker of quiet is a member of its group")
    assert 3_000 <= rest.world.clock.monotonic_ms() - began_ms < 4_000


def test_a_topic_belongs_to_the_app_with_the_longer_name_and_only_if_an_app_has_made_it() -> None:
    apps = ["billing", "billing.eu", "bill"]
    assert owner_of("billing.eu.orders.changelog", apps) == owner_of("billing.eu.x.repartition", apps) == "billing.eu"
    assert owner_of("billing.orders.changelog", apps) == "billing"
    assert owner_of("billing.orders", apps) is None
    assert owner_of("other.orders.changelog", apps) is None


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (True, True),
        (1 << 60, 1 << 60),
        (0.5, 0.5),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (b"tea", "tea"),
        (b"\xff\x00", "/wA="),
        (Decimal("1.50"), "1.50"),
        (datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), "2026-01-02T00:00:00+00:00"),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        ([None, {"a": b"x"}], [None, {"a": "x"}]),
    ],
)
def test_any_value_is_json(value: object, told: object) -> None:
    assert plain(pa.array([value])[0].as_py()) == told
