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

``lab`` is a cluster in this process too, with virtual time and faults, and one seed repeats all that happens; see
``headrace_lab.testing.lab``. Both need ``headrace-lab``.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.testing.clusters import ClusterUnavailable, TestCluster, started_cluster
    from headrace_lab.cluster import Cluster
    from headrace_lab.memory import MemoryBackend
    from headrace_lab.testing import lab

__all__ = ["Cluster", "ClusterUnavailable", "MemoryBackend", "TestCluster", "lab", "started_cluster"]

_IN_LAB = {"Cluster": "cluster", "MemoryBackend": "memory", "lab": "testing"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'headrace.testing' has no attribute {name!r}")
    if name in _IN_LAB:
        return getattr(lab_package(_IN_LAB[name]), name)
    return getattr(importlib.import_module("headrace.testing.clusters"), name)


def lab_package(module: str) -> ModuleType:
    """
    A module of ``headrace-lab``, which stands above all services.

    Raises:
        ClusterUnavailable: it is not installed.
    """
    try:
        return importlib.import_module(f"headrace_lab.{module}")
    except ImportError as error:
        from headrace.testing.clusters import ClusterUnavailable

        raise ClusterUnavailable(
            "a cluster in the test's own process is in the package headrace-lab, which is not installed here "
            f"({error}); install it with: pip install headrace-lab"
        ) from error
