"""
Where the cluster is, for queries whose options do not say: as every other client finds it.

``source`` asks once, on the driver, before a query travels: tasks run where neither the environment nor the files are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace.finding import ClusterAddress, bootstrap_addresses
from headrace_spark.core import kafka_settings
from headrace_spark.core.options import ConnectorOptions

_BOOTSTRAP = kafka_settings.PREFIX + kafka_settings.BOOTSTRAP
CLUSTER_ID = "clusterId"


def add_address(options: Mapping[str, str]) -> dict[str, str]:
    """
    ``options`` with the cluster's address, and its id where that is known.

    Raises:
        InvalidConfig: the environment or a profile names it wrongly.
    """
    given = {name.strip().lower() for name in options}
    if given & {_BOOTSTRAP, kafka_settings.BOOTSTRAP}:
        return dict(options)
    found = bootstrap_addresses(None)
    if found.cluster_id is None or CLUSTER_ID.lower() in given:
        return {**options, _BOOTSTRAP: str(found)}
    return {**options, _BOOTSTRAP: str(found), CLUSTER_ID: found.cluster_id}


def cluster_of(options: ConnectorOptions) -> ClusterAddress:
    """What the SDK's clients take; in each process with the CAs that its own environment names."""
    found = bootstrap_addresses(options.bootstrap_servers, "kafka.bootstrap.servers")
    return replace(found, cluster_id=options.cluster_id)
