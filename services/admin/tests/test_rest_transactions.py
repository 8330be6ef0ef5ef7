"""Transactions over REST and over gRPC, on the cluster in memory."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from headrace.transactions import PreparedTransaction
from headrace_common.core.ids import PartitionId
from headrace_common.core.image import ShardKind


@pytest.fixture
def rest(rest_in_memory: Any) -> Any:
    return rest_in_memory


NOW_MS = 1_700_000_000_000
MINUTE_MS = 60_000


@pytest.fixture
async def txn(rest: Any) -> Any:
    """Topic t; id pay has t-0 and t-1 open, sink is prepared in t-1."""
    await rest.client.post("/v1/topics", json={"name": "t", "partitions": 2})
    topic_id = rest.cluster.image.topic_ids["t"]
    rest.cluster.ends |= {PartitionId(topic_id, 0): 500, PartitionId(topic_id, 1): 900}
    rest.cluster.start_coordinators(1, 2)
    rest.cluster.make_shards(ShardKind.TRANSACTIONS)
    rest.transactions.begin("pay", 4, partitions=[("t", 0), ("t", 1)], started_ms=NOW_MS - 5_000)
    rest.transactions.begin("sink", 5, 2, partitions=[("t", 1)], started_ms=NOW_MS - MINUTE_MS)
    rest.transactions.prepare("sink")
    return rest


def refused(answer: Any, status: int, code: str, says: str = "") -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == code
    assert answer.json()["next_step"]
    assert says in answer.json()["detail"]


async def test_a_list_says_what_is_missing(txn: Any) -> None:
    listed = (await txn.client.get("/v1/transactions")).json()
    assert [(t["transactional_id"], t["state"], t["prepared_at_ms"]) for t in listed["transactions"]] == [
        ("pay", "ongoing", None),
        ("sink", "prepared", NOW_MS),
    ]
    assert listed["missing_shards"] == []
    for query, wanted in (("state=ongoing", "pay"), ("producer_id=5", "sink"), ("older_than_ms=4000", "pay")):
        listed = (await txn.client.get(f"/v1/transactions?{query}")).json()
        assert [t["transactional_id"] for t in listed["transactions"]] == [wanted]
    txn.transactions.down |= {1, 2}
    missing = (await txn.client.get("/v1/transactions")).json()["missing_shards"]
    assert [(m["shard"], m["error"]["code"]) for m in missing] == [(n, "NETWORK_EXCEPTION") for n in range(4)]
    refused(await txn.client.get("/v1/transactions?state=happy"), 400, "INVALID_REQUEST")


async def test_one_with_its_partitions(txn: Any) -> None:
    pay = (await txn.client.get("/v1/transactions/pay")).json()
    assert (pay["state"], pay["producer_id"], pay["timeout_ms"], pay["token"]) == ("ongoing", 4, 60_000, None)
    assert pay["partitions"] == [{"topic": "t", "partition": n, "without_marker": False} for n in (0, 1)]
    refused(await txn.client.get("/v1/transactions/nope"), 404, "TRANSACTIONAL_ID_NOT_FOUND", "headrace txn list")


@pytest.mark.parametrize(("verb", "committed"), [("commit", True), ("abort", False)])
async def test_prepared_ones_are_listed_and_decided(txn: Any, verb: str, committed: bool) -> None:
    listed = (await txn.client.get("/v1/transactions-prepared")).json()
    (sink,) = listed["transactions"]
    assert (sink["transactional_id"], listed["prepared_max_ms"]) == ("sink", 86_400_000)
    assert (await txn.client.get("/v1/transactions-prepared?older_than_ms=1000")).json()["transactions"] == []
    body = {"token": sink["token"]}
    assert PreparedTransaction.parse(sink["token"]).producer_epoch == 2
    for again in (verb, verb, "abort" if committed else "commit"):
        decided = (await txn.client.post(f"/v1/transactions-prepared/{again}", json=body)).json()
        assert decided == {"transactional_id": "sink", "committed": committed}
    refused(await txn.client.post(f"/v1/transactions-prepared/{verb}", json={"token": "pay"}), 400, "INVALID_REQUEST")
    other = str(PreparedTransaction.parse(sink["token"])._replace(nonce=77))
    gone = await txn.client.post(f"/v1/transactions-prepared/{verb}", json={"token": other})
    refused(gone, 409, "TXN_VERDICT_UNKNOWN")


async def test_an_open_one_is_aborted_with_a_dry_run_before(txn: Any) -> None:
    url = "/v1/transactions/pay/abort"
    plan = (await txn.client.post(url, json={"validate_only": True})).json()
    assert (plan["aborted"], plan["transaction"]["state"]) == (False, "ongoing")
    refused(await txn.client.post(url, json={"producer_id": 9}), 409, "INVALID_TXN_STATE", "producer id 4")
    assert (await txn.client.post(url, json={})).json()["aborted"] is True
    again = await txn.client.post(url, json={})
    refused(again, 409, "INVALID_TXN_STATE", "no transaction open")
    assert "/v1/transactions-prepared" in again.json()["next_step"]
    refused(await txn.client.post("/v1/transactions/sink/abort", json={}), 409, "INVALID_TXN_STATE", "prepared")


async def test_what_holds_readers_back_and_its_end(txn: Any) -> None:
    listed = (await txn.client.get("/v1/transactions-open?topic=t")).json()
    assert [(t["transactional_id"], t["partition"], t["standing"], t["held_back"]) for t in listed["transactions"]] == [
        ("sink", 1, "coordinated", 1),
        ("pay", 0, "coordinated", 1),
        ("pay", 1, "coordinated", 2),
    ]
    assert (await txn.client.get("/v1/transactions-hanging")).json()["transactions"] == []
    txn.cluster.write("t", 0, 4711, 3, first_offset=77, since_ms=NOW_MS - 17 * MINUTE_MS)
    (hanging,) = (await txn.client.get("/v1/transactions-hanging")).json()["transactions"]
    assert (hanging["producer_id"], hanging["transactional_id"], hanging["state"]) == (4711, None, None)
    status = (await txn.client.get("/v1/cluster/status")).json()
    assert (status["state"], status["holding_back"][0]) == ("degraded", hanging)
    assert "flights" not in status["verdict"]
    assert "headrace txn abort --partition t-0 --producer-id 4711" in status["verdict"]
    url = "/v1/transactions-hanging/abort"
    body = {"topic": "t", "partition": 0}
    plan = (await txn.client.post(url, json=body | {"validate_only": True})).json()
    assert (plan["aborted"], plan["transaction"]) == (False, hanging)
    assert (await txn.client.post(url, json=body | {"producer_id": 4711})).json()["aborted"] is True
    refused(await txn.client.post(url, json=body), 404, "RESOURCE_NOT_FOUND")
    refused(await txn.client.post(url, json=body | {"producer_id": 4}), 409, "INVALID_TXN_STATE", "txn abort pay")
    refused(await txn.client.get("/v1/transactions-open?topic=nope"), 404, "UNKNOWN_TOPIC_OR_PARTITION")
    assert (await txn.client.get("/v1/cluster/status")).json()["state"] == "healthy"


async def test_who_cannot_be_asked_is_named(txn: Any) -> None:
    txn.cluster.down.add(2)
    txn.transactions.loading |= {0, 1, 2, 3}
    listed = (await txn.client.get("/v1/transactions-open")).json()
    (unasked,) = listed["unasked"]
    assert (unasked["topic"], unasked["partitions"], unasked["error"]["code"]) == ("t", [1], "NETWORK_EXCEPTION")
    assert [m["shard"] for m in listed["missing_shards"]] == [0, 1, 2, 3]


async def test_prepared_too_long_is_in_the_status(txn: Any) -> None:
    long_ago_ms = NOW_MS - 25 * 60 * MINUTE_MS
    txn.transactions.begin("sink", 5, 2, partitions=[("t", 1)], started_ms=long_ago_ms)
    txn.transactions.prepare("sink", prepared_ms=long_ago_ms)
    status = (await txn.client.get("/v1/cluster/status")).json()
    assert [p["transactional_id"] for p in status["prepared_overdue"]] == ["sink"]
    assert (status["state"], status["transaction_shards"], status["unowned_transaction_shards"]) == ("degraded", 4, 0)


@pytest.mark.parametrize("i", ["team/app", "ü b", "a?b#c", "..", "%2F", "abort", "a/abort"])
async def test_an_id_may_be_any_text(txn: Any, i: str) -> None:
    txn.transactions.begin(i, 77)
    url = f"/v1/transactions/{quote(i, safe='')}".replace("/..", "/%2E%2E")
    assert (await txn.client.get(url)).json()["transactional_id"] == i
    assert (await txn.client.post(f"{url}/abort", json={})).json()["aborted"] is True


async def test_lag_counts_to_the_last_stable_offset(txn: Any) -> None:
    txn.cluster.make_shards(ShardKind.GROUPS)
    txn.coordinators.commit("g", {("t", 0): 490, ("t", 1): 901})
    lag = (await txn.client.get("/v1/groups/g/lag")).json()
    assert [(p["end_offset"], p["lag"]) for p in lag["partitions"]] == [(500, 10), (900, 0)]
    body = {"to": "latest", "topics": [{"topic": "t"}]}
    plan = (await txn.client.post("/v1/groups/new/offsets/reset", json=body)).json()["partitions"]
    assert [(p["new_offset"], p["end_offset"]) for p in plan] == [(500, 501), (900, 902)]
    assert plan[0]["note"] == "a transaction is open from 500 on: to there"
    there = {"to": "current"}
    kept = (await txn.client.post("/v1/groups/g/offsets/reset", json=there)).json()["partitions"]
    assert [(p["new_offset"], p["note"]) for p in kept] == [(490, None), (901, None)], "readers of all may be beyond"
    txn.transactions.end("pay", commit=True)
    txn.transactions.end("sink", commit=True)
    plan = (await txn.client.post("/v1/groups/new/offsets/reset", json=body)).json()["partitions"]
    assert [(p["new_offset"], p["note"]) for p in plan] == [(502, None), (904, None)]


async def test_the_document_has_examples(txn: Any) -> None:
    schemas = (await txn.client.get("/openapi.json")).json()["components"]["schemas"]
    for name in ("Abort", "Decide", "AbortHanging"):
        assert schemas[name]["examples"]
    PreparedTransaction.parse(schemas["Decide"]["examples"][0]["token"])
