"""
For tests of programs that use Headrace: pytest fixtures with a cluster, found once ``headrace`` is installed.

``headrace_cluster`` is a real cluster in processes of its own, one for the session (needs ``headrace-cli``)::

    def test_orders_arrive(headrace_cluster):
        topic = headrace_cluster.unique_topic(partitions=3)
        with headrace_cluster.producer() as producer:
            producer.send(topic, b"one").result(timeout=10)
        with headrace_cluster.consumer(topic) as consumer:
            assert [record.value for record in consumer.poll(timeout_ms=10_000)] == [b"one"]

``headrace_memory`` is a small one in this process, new for each test; see ``headrace.testing.memory.MemoryBackend``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.testing.clusters import ClusterUnavailable, TestCluster, started_cluster
    from headrace.testing.memory import MemoryBackend

__all__ = ["ClusterUnavailable", "MemoryBackend", "TestCluster", "started_cluster"]


def __getattr__(name: str) -> Any:
    import importlib

    if name not in __all__:
        raise AttributeError(f"module 'headrace.testing' has no attribute {name!r}")
    module = "headrace.testing.memory" if name == "MemoryBackend" else "headrace.testing.clusters"
    return getattr(importlib.import_module(module), name)
