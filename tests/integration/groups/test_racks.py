"""Groups whose members and brokers are in racks: everybody reads what is near, in both protocols, on real processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.integration.sdk_replication.test_failover import until

from headrace import TopicPartition
from headrace.testing import started_cluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

PROTOCOLS: tuple[dict[str, Any], ...] = (
    {"group_protocol": "consumer"},
    {"group_protocol": "consumer", "group_remote_assignor": "range"},
    {"group_protocol": "classic", "partition_assignment_strategy": ["range"]},
    {"group_protocol": "classic", "partition_assignment_strategy": ["cooperative-sticky"]},
)


def test_members_are_given_what_has_a_replica_in_their_rack(tmp_path: Path) -> None:
    with started_cluster(tmp_path / "data", brokers=3, racks=["a", "b", "c"]) as cluster:
        with cluster.admin() as admin:
            admin.create_topic("t", assignments=[[1], [2], [3], [1], [2], [3]])
        for number, protocol in enumerate(PROTOCOLS):
            with ExitStack() as stack:
                # by range without racks nobody would have two that are near
                readers = {
                    rack: stack.enter_context(
                        cluster.consumer("t", group_id=f"g{number}", client_rack=rack, **protocol)
                    )
                    for rack in "cab"
                }
                near = {"a": (0, 3), "b": (1, 4), "c": (2, 5)}
                wanted = {rack: {TopicPartition("t", n) for n in numbers} for rack, numbers in near.items()}
                until(_polled(readers, wanted))


def _polled(readers: dict[str, Any], wanted: dict[str, set[TopicPartition]]) -> Callable[[], bool]:
    def there() -> bool:
        for reader in readers.values():
            reader.poll(timeout_ms=50)
        return {rack: set(reader.assignment()) for rack, reader in readers.items()} == wanted

    return there
