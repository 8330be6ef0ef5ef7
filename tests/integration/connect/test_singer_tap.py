"""A Singer tap as its authors publish it reads a web service: each change is in its topic once, also after kills."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import pytest
from tests.integration.connect.killing import RUN_S, run
from tests.integration.connect.taps import rest_tap
from tests.integration.connect.web import serving

from headrace.testing import TestCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_200)]

Order = dict[str, Any]
PAGE: Final = 3


class Shop(BaseHTTPRequestHandler):
    """Answers with orders by the time of their last change, from ``updated_since`` on, in pages."""

    orders: dict[int, Order]
    queries: list[dict[str, str]]

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        self.queries.append(query)
        changed = [one for one in self.orders.values() if one["updated_at"] >= query.get("updated_since", "")]
        changed.sort(key=lambda one: str(one["updated_at"]))
        page = int(query.get("page", "1"))
        answer: dict[str, Any] = {"data": changed[(page - 1) * PAGE : page * PAGE]}
        if page * PAGE < len(changed):
            answer["next_page"] = page + 1
        body = json.dumps(answer).encode()
        is_known = url.path == "/api/orders" and self.headers["authorization"] == "Bearer secret"
        self.send_response(200 if is_known else 404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def order(id: int, day: int, total: float = 9.5) -> Order:
    return {"id": id, "total": total, "updated_at": f"2024-01-{day:02}T00:00:00Z"}


@contextmanager
def started_shop(orders: Sequence[Order]) -> Iterator[tuple[str, type[Shop]]]:
    """The address of the service, and its orders and queries."""
    handler: type[Shop] = type("Handler", (Shop,), {"orders": {one["id"]: one for one in orders}, "queries": []})
    with serving(handler) as url:
        yield f"{url}/api/", handler


def config_of(prefix: str, url: str, directory: Path) -> dict[str, str]:
    """As the quick start of the connector's page."""
    (directory / "shop").write_text("token=secret\n")
    stream = {
        "name": "orders",
        "path": "orders",
        "records_path": "$.data[*]",
        "primary_keys": ["id"],
        "replication_key": "updated_at",
        "source_search_field": "updated_since",
        "source_search_query": "$last_run_date",
    }
    return {
        "name": f"in.{prefix}",
        "connector.class": "singer",
        "tap.executable": str(rest_tap()),
        "config.api_url": url,
        "config.auth_method": "bearer_token",
        "config.bearer_token": f"${{file:{directory / 'shop'}:token}}",
        "config.start_date": "2024-01-01T00:00:00Z",
        "config.streams": json.dumps([stream]),
        "discover.timeout.ms": str(RUN_S * 1_000),  # the machine may be busy
        "topic.pattern": f"{prefix}.{{stream}}",
    }


def orders_in(cluster: TestCluster, prefix: str) -> list[Order]:
    """What readers of committed records see, by id and time."""
    with cluster.consumer(f"{prefix}.orders", isolation_level="read_committed") as consumer:
        records = list(consumer.read_to_end(timeout_ms=60_000))
    orders: list[Order] = [json.loads(record.value) for record in records]
    assert [json.loads(record.key or b"null") for record in records] == [{"id": one["id"]} for one in orders]
    return sorted(orders, key=lambda one: (one["id"], one["updated_at"]))


def test_each_change_of_a_web_service_comes_once(cluster: TestCluster, tmp_path: Path) -> None:
    prefix = cluster.unique_topic("shop")
    first = [order(id, day=id) for id in range(1, 8)]
    before_start = order(10, day=1) | {"updated_at": "2023-12-31T00:00:00Z"}
    with started_shop([*first, before_start]) as (url, shop):
        config = config_of(prefix, url, tmp_path)
        run(cluster, tmp_path, config)
        assert orders_in(cluster, prefix) == first
        assert shop.queries[-1]["page"] == "3", "it reads all pages"

        new, at_last_time, again = order(8, day=9), order(9, day=7), order(2, day=8, total=1.25)
        shop.orders.update({one["id"]: one for one in (new, at_last_time, again)})
        run(cluster, tmp_path, config)
        assert shop.queries[-1]["updated_since"] == first[-1]["updated_at"], "it asks for what has changed"
        changed = [*first[:2], again, *first[2:], new, at_last_time]
        assert orders_in(cluster, prefix) == changed

        run(cluster, tmp_path, config)
        assert orders_in(cluster, prefix) == changed


def test_the_connector_is_killed_before_and_after_a_commit(cluster: TestCluster, tmp_path: Path) -> None:
    """One transaction has the whole run: the state that this tap says at first would be a commit without records."""
    prefix = cluster.unique_topic("shop")
    first = [order(id, day=id) for id in range(1, 8)]
    with started_shop(first) as (url, shop):
        config = config_of(prefix, url, tmp_path) | {"offset.flush.interval.ms": "600000"}
        run(cluster, tmp_path, config, "connect.source.positions")
        assert shop.queries[-1]["page"] == "3", "it was killed when it had sent all"
        assert orders_in(cluster, prefix) == []

        run(cluster, tmp_path, config, "connect.source.committed")
        assert orders_in(cluster, prefix) == first

        new = order(8, day=8)
        shop.orders[8] = new
        run(cluster, tmp_path, config)
        assert orders_in(cluster, prefix) == [*first, new]


def test_validation_names_the_streams_that_there_are(tmp_path: Path) -> None:
    with started_shop([order(1, day=1)]) as (url, _):
        config = config_of("shop", url, tmp_path) | {"stream.include.list": "order"}
        file = tmp_path / "shop.json"
        file.write_text(json.dumps({"name": config["name"], "config": config}))
        command = [sys.executable, "-m", "headrace_cli", "connect", "validate", str(file)]
        process = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert process.returncode == 1, process
    assert "stream.include.list" in process.stdout, process
    assert "the tap has no stream order" in process.stdout, process
    assert "it has orders" in process.stdout, process
