"""Moving, draining, emptying and electing in a real cluster, over REST, and what the verdict says of it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from headrace_cli.local import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
MakeCluster = Callable[..., LocalCluster]
QUICK = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "300"}

JSON = {"content-type": "application/json"}


def eventually(what: Callable[[], Any], holds: Callable[[Any], bool], seconds: float = 30) -> Any:
    end = time.monotonic() + seconds
    while True:
        seen = what()
        if holds(seen):
            return seen
        assert time.monotonic() < end, f"still {seen!r}"
        time.sleep(0.05)


def post(http: httpx.Client, path: str, body: Any = None) -> Any:
    answer = http.post(path, json=body if body is not None else {})
    assert answer.status_code in {200, 201}, answer.text
    return answer.json()


def fill(http: httpx.Client, topic: str, records: int) -> None:
    some = [{"key": f"k{n}", "value": "x" * 200} for n in range(records)]
    post(http, f"/v1/topics/{topic}/records", {"records": some})


def partitions(http: httpx.Client, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = http.get(f"/v1/topics/{topic}").json()["partitions"]
    return found


def under_way(http: httpx.Client) -> list[Any]:
    found: list[Any] = http.get("/v1/reassignments").json()["reassignments"]
    return found


def ends_of(http: httpx.Client, topic: str) -> list[int]:
    return [p["high_watermark"] for p in partitions(http, topic)]


def test_replicas_move_under_a_throttle_are_cancelled_and_arrive(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=3, settings=QUICK)
    with httpx.Client(base_url=cluster.admin_url, timeout=60, headers={**JSON, **cluster.authorization}) as http:
        post(http, "/v1/topics", {"name": "t", "assignments": [[1, 2], [1, 2]]})
        fill(http, "t", 1000)
        fill(http, "t", 1000)
        before = ends_of(http, "t")
        move = {"reassignments": [{"topic": "t", "partition": 0, "replicas": [3, 2]}], "throttle_bytes_per_s": 2_000}
        cluster.signal("broker-3", signal.SIGSTOP)  # so that it cannot have copied already
        post(http, "/v1/reassignments", move)
        (slow,) = under_way(http)
        assert (slow["partition"]["adding"], slow["partition"]["removing"]) == ([3], [1])
        assert slow["new_replicas"][0]["percent"] < 100
        assert http.get("/v1/cluster/status").json()["under_replicated_partitions"] == 0, "a new copy is no harm"
        post(http, "/v1/reassignments/cancel", {"all": True})
        cluster.signal("broker-3", signal.SIGCONT)
        eventually(lambda: partitions(http, "t")[0]["replicas"], lambda held: sorted(held) == [1, 2])
        eventually(lambda: http.get("/health/cluster").json()["state"], lambda state: state == "healthy")
        assert http.put("/v1/reassignments/throttle", json={"bytes_per_s": -1}).status_code == 200
        post(http, "/v1/reassignments", {"reassignments": move["reassignments"]})
        eventually(lambda: under_way(http), lambda found: not found)
        moved = partitions(http, "t")[0]
        assert (moved["replicas"], sorted(moved["isr"]), moved["adding"], moved["removing"]) == ([3, 2], [2, 3], [], [])
        eventually(
            lambda: [log["partition"] for log in http.get("/v1/brokers/1/logs?topic=t").json()["logs"]],
            lambda held: held == [1],
        )
        assert ends_of(http, "t") == before, "nothing is lost on the way"


def test_a_broker_is_emptied_and_forgotten_and_a_new_one_gets_its_share(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=4, settings=QUICK)
    with httpx.Client(base_url=cluster.admin_url, timeout=60, headers={**JSON, **cluster.authorization}) as http:
        post(http, "/v1/topics", {"name": "t", "assignments": [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 3, 2]]})
        fill(http, "t", 500)
        before = ends_of(http, "t")
        plan = post(http, "/v1/cluster/rebalance")
        assert [b["replicas_after"] for b in plan["brokers"]] == [3, 3, 3, 3]
        assert all(move["error"] is None for move in plan["moves"])
        eventually(lambda: under_way(http), lambda found: not found)
        assert post(http, "/v1/cluster/rebalance", {"validate_only": True})["moves"] == []
        post(http, "/v1/elections")
        eventually(lambda: sorted(p["leader"] for p in partitions(http, "t")), lambda leaders: leaders == [1, 2, 3, 4])
        post(http, "/v1/brokers/2/decommission")
        done = eventually(
            lambda: http.get("/v1/brokers/2/decommission").json(), lambda left: left["replicas_left"] == 0
        )
        assert "unregister 2" in done["next_step"]
        assert all(2 not in p["replicas"] for p in partitions(http, "t"))
        assert http.delete("/v1/brokers/2?confirm=2").status_code == 409
        cluster.kill("broker-2", hard=False)
        eventually(lambda: http.delete("/v1/brokers/2?confirm=2").status_code, lambda code: code == 204)
        health = eventually(lambda: http.get("/v1/cluster/status").json(), lambda found: found["state"] == "healthy")
        assert health["verdict"].startswith("healthy: 3 brokers")
        assert ends_of(http, "t") == before


def test_the_verdict_follows_brokers_that_die_and_return(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=3, settings=QUICK)
    with httpx.Client(base_url=cluster.admin_url, timeout=60, headers={**JSON, **cluster.authorization}) as http:
        made = post(http, "/v1/topics", {"name": "t", "partitions": 3})
        assert {len(p["replicas"]) for p in made["partitions"]} == {3}, "as many replicas as brokers, up to three"

        def health() -> tuple[int, dict[str, Any]]:
            status = http.get("/v1/cluster/status").json()
            return http.get("/health/cluster").status_code, status  # asked later, so it knows what the status does

        assert health()[1]["state"] == "healthy"
        cluster.kill("broker-2")
        code, said = eventually(health, lambda found: "2 of 3 replicas in sync" in found[1]["verdict"])
        assert (code, said["state"]) == (200, "degraded")
        assert "broker 2 is away since" in said["verdict"]
        fill(http, "t", 100)
        cluster.kill("broker-3")
        code, said = eventually(health, lambda found: found[1]["state"] == "unavailable")
        assert code == 503
        assert "writes with acks=all" in said["verdict"] or "no leader" in said["verdict"]
        for name in ("broker-2", "broker-3"):
            cluster.restart(name)
        cluster.wait_ready()
        code, said = eventually(health, lambda found: found[1]["state"] == "healthy")
        assert code == 200
        assert sum(ends_of(http, "t")) == 100


def test_a_drained_broker_leads_nothing_until_it_may_again(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=3, racks=("a", "b", "c"), settings=QUICK)
    with httpx.Client(base_url=cluster.admin_url, timeout=60, headers={**JSON, **cluster.authorization}) as http:
        assert [b["rack"] for b in http.get("/v1/brokers").json()["brokers"]] == ["a", "b", "c"]
        post(http, "/v1/topics", {"name": "t", "partitions": 6})
        post(http, "/v1/brokers/1/drain")

        def leading() -> list[int]:
            return [b["leaders"] for b in http.get("/v1/cluster/status").json()["brokers"]]

        eventually(leading, lambda leaders: leaders[0] == 0)
        cluster.kill("broker-1", hard=False)
        cluster.restart("broker-1")
        cluster.wait_ready()
        assert leading()[0] == 0, "a restart does not end it"
        http.delete("/v1/brokers/1/drain")
        eventually(lambda: (post(http, "/v1/elections"), leading())[1], lambda leaders: leaders == [2, 2, 2])
