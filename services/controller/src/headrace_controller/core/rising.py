"""
Decides when the cluster rises to a higher feature level: once every registered node knows it.

All registered nodes count, fenced ones and standing-by controllers too: who is registered may come back as it was.
A node that will not come back is unregistered. Called by the active controller (``engine.features``).
"""

from __future__ import annotations

from headrace_common.core.features import attainable
from headrace_controller.core import records
from headrace_controller.core.mirror import Mirror
from headrace_controller.core.records import Cluster


def raise_level(mirror: Mirror) -> Cluster | None:
    """
    The cluster's record at the level that it may have now; None: it stays where it is.

    While a restore is unfinished it stays: nodes that were registered after the backup are not known yet.
    """
    image = mirror.image
    if mirror.waits_for_logs or mirror.half_restored or not mirror.mod_revision(records.CLUSTER_KEY):
        return None
    known_by_all = attainable(node.feature_level_max for node in image.nodes.values())
    level = min(known_by_all, mirror.feature_level_max)
    return Cluster(image.cluster_id, image.incarnation, level) if level > image.feature_level else None
