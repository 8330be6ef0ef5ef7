"""Two topics are joined by workers that are killed at each step of a commit: pairs, and rows alone, come once."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from headrace.testing import TestCluster

from .apps import app
from .test_exactly_once import AFTER, POINTS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

FAR = 10_000_000


def test_two_streams_joined_by_workers_that_die(cluster: TestCluster, tmp_path: Path) -> None:
    tested = app(cluster, tmp_path, "joined", 2)
    tested.late = cluster.unique_topic("payments", 2)
    chance = random.Random(5)
    rows: dict[str, list[tuple[bytes, int, int]]] = {"orders": [], "payments": []}

    def send(topic: str, new: list[tuple[bytes, int, int]]) -> None:
        values = [b'{"n": %d, "at": %d}' % (n, at) for _, n, at in new]
        with cluster.producer() as producer:
            name = tested.lines if topic == "orders" else tested.late
            producer.send_many(name, values, keys=[user for user, _, _ in new])
            producer.flush()

    for turn, point in enumerate((*POINTS, *AFTER)):
        tested.arm(point, "kill")
        with tested.running(join_wait_ms=chance.choice((0, 500))) as worker:
            for topic, of in rows.items():
                new = [
                    (b"u%d" % chance.randrange(9), len(of) + n, turn * 100 + chance.randrange(100)) for n in range(40)
                ]
                of += new
                send(topic, new)
            tested.wait_for(point)
            worker.wait()
    expected = Counter[tuple[int | None, int | None]](
        (n, paid)
        for user, n, at in rows["orders"]
        for other, paid, paid_at in rows["payments"]
        if user == other and -20 <= paid_at - at <= 50
    )
    met = {n for n, _ in expected}, {paid for _, paid in expected}
    expected.update((n, None) for _, n, _ in rows["orders"] if n not in met[0])
    expected.update((None, paid) for _, paid, _ in rows["payments"] if paid not in met[1])
    for topic, at in (("orders", FAR), ("payments", FAR + 100)):  # all that came before closes
        send(topic, [(b"far%d" % n, n, at) for n in range(20)])
    with tested.running():
        found = tested.read(expected.total())
    assert Counter((row["n"], row["paid"]) for _, row in found) == expected
