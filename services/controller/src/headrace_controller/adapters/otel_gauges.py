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
    "unclean_elections": "Partitions that this term gave to replicas that may have lost committed records",
    "balanced_recoveries": "Partitions that this term brought back by comparing the logs of all last known replicas",
    "leaders_given_back": "Leaderships that this term gave back to preferred leaders",
    "isr_changes": "ISR changes that leaders asked for in this term and got",
    "isr_changes_refused": "ISR changes that leaders asked for in this term and did not get",
    "metadata_revision": "Revision of the image",
    "store_reachable": "1 while the watch on etcd stands",
    "restore_unfinished": "1 while nobody leads, since the metadata was restored and not all logs were seen",
    "topics": "Topics",
    "partitions": "Partitions",
    "offline_partitions": "Partitions without a leader",
    "under_replicated_partitions": "Partitions with fewer replicas in sync than they have",
    "under_min_isr_partitions": "Partitions with fewer replicas in sync than min.insync.replicas",
    "not_preferred_partitions": "Partitions led by another replica than their first",
    "reassigning_partitions": "Partitions whose replicas are being changed",
    "recovering_partitions": "Partitions led since an unclean election, until all their replicas are in sync",
    "feature_level": "Feature level of the cluster",
    "access_mode": "How closed the cluster is: 0 open, 1 permissive, 2 closed",
    "access_vouched_full": "1 while access_vouched is full: sessions may also change who may what",
    "breakglass": "1 while the super user of break-glass is there, until it is ended",
    "issuer_keys_age_seconds": "For how long the keys of some issuer of tokens were not confirmed; the most is 30 days",
    "nodes": "Registered nodes of all roles",
    "fenced_nodes": "Nodes that take no part now",
    "pending_deletions": "Deleted topics whose logs are not gone everywhere",
    "pending_removals": "Partitions with logs to be deleted on brokers that gave their replica to another",
    "drained_brokers": "Brokers that an operator keeps from leading",
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
