"""Shows the controller's state as OpenTelemetry gauges; what they mean stands here, where people look for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

GAUGES: Final[Mapping[str, str]] = {
    "active": "1 on the active controller, 0 on standbys; the sum over all controllers is 1",
    "terms": "Elections won by this process",
    "controller_epoch": "Epoch of the present term; 0 on standbys",
    "leader_moves": "Partitions whose leader this term has changed",
    "metadata_revision": "Revision of the image",
    "store_reachable": "1 while the watch on etcd stands",
    "topics": "Topics",
    "partitions": "Partitions",
    "offline_partitions": "Partitions that nobody leads",
    "under_replicated_partitions": "Partitions with fewer replicas in sync than they have",
    "nodes": "Registered nodes of all roles",
    "fenced_nodes": "Nodes that take no part now",
    "pending_deletions": "Deleted topics whose logs are not gone everywhere",
    "watchers": "Open WatchMetadata streams",
    "watcher_overflows": "Times that a slow watcher got a snapshot instead of its queue",
}


def publish(meter: Meter, read: Callable[[], Mapping[str, float]]) -> None:
    """Register every gauge; ``read`` is called from the metrics thread, once per gauge and scrape."""
    for name, description in GAUGES.items():
        meter.create_observable_gauge(
            f"headrace_controller_{name}", callbacks=[_observe(name, read)], description=description
        )


def _observe(name: str, read: Callable[[], Mapping[str, float]]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _: [Observation(read()[name])]
