"""Transactions over REST."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from libs.sdk.tests.kit.cluster import LabCluster
from services.admin.tests.kit.rest import Rest

from headrace.transactions import PreparedTransaction
from headrace_common.core.image import ShardKind
from headrace_proto.v1 import transaction_pb2 as pb


@pytest.fixture
async def topic(lab: LabCluster, rest: Rest) -> Rest:
    """Topic t, whose leaders are brokers 1 and 2, with 500 and 900 records."""
    lab.create_topic("t", on=[[1], [2]])
    await rest.world.fill("t", 0, 500)
    await rest.world.fill("t", 1, 900)
    return rest


@pytest.fixture
async def txn(topic: Rest) -> Rest:
    """Id pay has t-0 and t-1 open for 5 s; sink is older, and prepared in t-1 just now."""
    await begin(topic)
    return topic


async def begin(rest: Rest) -> None:
    await rest.world.begin("sink", ("t", 1))
    age(rest, 55)
    await rest.world.begin("pay", ("t", 0), ("t", 1), timeout_ms=60_000)
    age(rest, 5)
    await rest.world.prepare("sink")


def age(rest: Rest, seconds: float) -> None:
    """All wall clocks go ahead."""
    rest.world.lab.nodes.jump_clocks(seconds=seconds)


async def producer_id(rest: Rest, i: str) -> int:
    return (await rest.world.engines.transactions.one(i)).transaction.producer_id


def refused(answer: Any, status: int, code: str, says: str = "") -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == code
    assert answer.json()["next_step"]
    assert says in answer.json()["detail"]


async def test_a_list_says_what_is_missing(txn: Rest) -> None:
    listed = (await txn.client.get("/v1/transactions")).json()
    assert [(t["transactional_id"], t["state"]) for t in listed["transactions"]] == [
        ("pay", "ongoing"),
        ("sink", "prepared"),
    ]
    pay, sink = listed["transactions"]
    assert (pay["prepared_at_ms"], sink["prepared_at_ms"] - sink["started_at_ms"] >= 60_000) == (None, True)
    assert listed["missing_shards"] == []
    of_sink = f"producer_id={sink['producer_id']}"
    for query, wanted in (("state=ongoing", "pay"), (of_sink, "sink"), ("older_than_ms=4000", "pay")):
        listed = (await txn.client.get(f"/v1/transactions?{query}")).json()
        assert [t["transactional_id"] for t in listed["transactions"]] == [wanted]
    for number in (1, 2):
        txn.world.lab.refuse(f"coordinator-{number}")
    missing = (await txn.client.get("/v1/transactions")).json()["missing_shards"]
    assert [(m["shard"], m["error"]["code"]) for m in missing] == [(n, "NETWORK_EXCEPTION") for n in range(4)]
    refused(await txn.client.get("/v1/transactions?state=happy"), 400, "INVALID_REQUEST")


async def test_one_with_its_partitions(txn: Rest) -> None:
    pay = (await txn.client.get("/v1/transactions/pay")).json()
    assert (pay["state"], pay["timeout_ms"], pay["token"]) == ("ongoing", 60_000, None)
    assert pay["partitions"] == [{"topic": "t", "partition": n, "without_marker": False} for n in (0, 1)]
    refused(await txn.client.get("/v1/transactions/nope"), 404, "TRANSACTIONAL_ID_NOT_FOUND", "headrace txn list")


@pytest.mark.parametrize(("verb", "committed"), [("commit", True), ("abort", False)])
async def test_prepared_ones_are_listed_and_decided(txn: Rest, verb: str, committed: bool) -> None:
    listed = (await txn.client.get("/v1/transactions-prepared")).json()
    (sink,) = listed["transactions"]
    assert (sink["transactional_id"], listed["prepared_max_ms"]) == ("sink", 86_400_000)
    assert (await txn.client.get("/v1/transactions-prepared?older_than_ms=1000")).json()["transactions"] == []
    body = {"token": sink["token"]}
    assert PreparedTransaction.parse(sink["token"]).producer_epoch == 0
    for again in (verb, verb, "abort" if committed else "commit"):
        decided = (await txn.client.post(f"/v1/transactions-prepared/{again}", json=body)).json()
        assert decided == {"transactional_id": "sink", "committed": committed}
    refused(await txn.client.post(f"/v1/transactions-prepared/{verb}", json={"token": "pay"}), 400, "INVALID_REQUEST")
    other = str(PreparedTransaction.parse(sink["token"])._replace(nonce=77))
    gone = await txn.client.post(f"/v1/transactions-prepared/{verb}", json={"token": other})
    refused(gone, 409, "TXN_VERDICT_UNKNOWN")


async def test_an_open_one_is_aborted_with_a_dry_run_before(txn: Rest) -> None:
    url = "/v1/transactions/pay/abort"
    plan = (await txn.client.post(url, json={"validate_only": True})).json()
    assert (plan["aborted"], plan["transaction"]["state"]) == (False, "ongoing")
    own = plan["transaction"]["producer_id"]
    other = await txn.client.post(url, json={"producer_id": own + 1})
    refused(other, 409, "INVALID_TXN_STATE", f"producer id {own}")
    assert (await txn.client.post(url, json={})).json()["aborted"] is True
    for partition in (0, 1):
        txn.world.lab.wait_until_decided("t", partition)
    again = await txn.client.post(url, json={})
    refused(again, 409, "INVALID_TXN_STATE", "no transaction open")
    assert "/v1/transactions-prepared" in again.json()["next_step"]
    refused(await txn.client.post("/v1/transactions/sink/abort", json={}), 409, "INVALID_TXN_STATE", "prepared")


async def test_what_holds_readers_back_and_its_end(topic: Rest) -> None:
    txn, lost = topic, await topic.world.hang("t", 0)
    age(txn, 16 * 60)
    await begin(txn)
    listed = (await txn.client.get("/v1/transactions-open?topic=t")).json()
    assert [(t["transactional_id"], t["partition"], t["standing"], t["held_back"]) for t in listed["transactions"]] == [
        (None, 0, "hanging", 2),
        ("sink", 1, "coordinated", 2),
        ("pay", 0, "coordinated", 1),
        ("pay", 1, "coordinated", 1),
    ]
    (hanging,) = (await txn.client.get("/v1/transactions-hanging")).json()["transactions"]
    assert (hanging["producer_id"], hanging["transactional_id"], hanging["state"]) == (lost, None, None)
    status = (await txn.client.get("/v1/cluster/status")).json()
    assert (status["state"], status["holding_back"][0]) == ("degraded", hanging)
    assert f"headrace txn abort --partition t-0 --producer-id {lost}" in status["verdict"]
    url = "/v1/transactions-hanging/abort"
    body = {"topic": "t", "partition": 0}
    plan = (await txn.client.post(url, json=body | {"validate_only": True})).json()
    assert (plan["aborted"], plan["transaction"]) == (False, hanging)
    assert (await txn.client.post(url, json=body | {"producer_id": lost})).json()["aborted"] is True
    refused(await txn.client.post(url, json=body), 404, "RESOURCE_NOT_FOUND")
    pay = body | {"producer_id": await producer_id(txn, "pay")}
    refused(await txn.client.post(url, json=pay), 409, "INVALID_TXN_STATE", "txn abort pay")
    refused(await txn.client.get("/v1/transactions-open?topic=nope"), 404, "UNKNOWN_TOPIC_OR_PARTITION")
    assert (await txn.client.get("/v1/cluster/status")).json()["state"] == "healthy"


async def test_who_cannot_be_asked_is_named(txn: Rest) -> None:
    txn.world.lab.refuse("broker-2")
    for number in (1, 2):
        txn.world.lab.refuse(f"coordinator-{number}")
    listed = (await txn.client.get("/v1/transactions-open")).json()
    (unasked,) = listed["unasked"]
    assert (unasked["topic"], unasked["partitions"], unasked["error"]["code"]) == ("t", [1], "NETWORK_EXCEPTION")
    assert [m["shard"] for m in listed["missing_shards"]] == [0, 1, 2, 3]


async def test_prepared_too_long_is_in_the_status(txn: Rest) -> None:
    age(txn, 25 * 3_600)
    status = (await txn.client.get("/v1/cluster/status")).json()
    assert [p["transactional_id"] for p in status["prepared_overdue"]] == ["sink"]
    assert (status["state"], status["transaction_shards"], status["unowned_transaction_shards"]) == ("degraded", 4, 0)


@pytest.mark.parametrize("i", ["team/app", "ü b", "a?b#c", "..", "%2F", "abort", "a/abort"])
async def test_an_id_may_be_any_text(txn: Rest, i: str) -> None:
    await txn.world.begin(i, ("t", 0))
    url = f"/v1/transactions/{quote(i, safe='')}".replace("/..", "/%2E%2E")
    assert (await txn.client.get(url)).json()["transactional_id"] == i
    assert (await txn.client.post(f"{url}/abort", json={})).json()["aborted"] is True


async def test_lag_counts_to_the_last_stable_offset(txn: Rest) -> None:
    await txn.world.make_shards(ShardKind.GROUPS)
    await txn.world.commit("g", {("t", 0): 490, ("t", 1): 901})
    lag = (await txn.client.get("/v1/groups/g/lag")).json()
    assert [(p["end_offset"], p["lag"]) for p in lag["partitions"]] == [(500, 10), (900, 0)]
    body = {"to": "latest", "topics": [{"topic": "t"}]}
    plan = (await txn.client.post("/v1/groups/new/offsets/reset", json=body)).json()["partitions"]
    assert [(p["new_offset"], p["end_offset"]) for p in plan] == [(500, 501), (900, 902)]
    assert plan[0]["note"] == "a transaction is open from 500 on: to there"
    there = {"to": "current"}
    kept = (await txn.client.post("/v1/groups/g/offsets/reset", json=there)).json()["partitions"]
    assert [(p["new_offset"], p["note"]) for p in kept] == [(490, None), (901, None)], "readers of all may be beyond"
    await txn.world.producers["pay"].commit_transaction()
    token = (await txn.world.engines.transactions.one("sink")).transaction.token
    await txn.world.engines.transactions.decide(pb.DecidePreparedRequest(token=token, commit=True))
    for partition in (0, 1):
        txn.world.lab.wait_until_decided("t", partition)
    plan = (await txn.client.post("/v1/groups/new/offsets/reset", json=body)).json()["partitions"]
    assert [(p["new_offset"], p["note"]) for p in plan] == [(502, None), (904, None)]


async def test_the_document_has_examples(txn: Rest) -> None:
    schemas = (await txn.client.get("/openapi.json")).json()["components"]["schemas"]
    for name in ("Abort", "Decide", "AbortHanging"):
        assert schemas[name]["examples"]
    PreparedTransaction.parse(schemas["Decide"]["examples"][0]["token"])
