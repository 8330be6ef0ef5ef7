"""
Where the cluster is, for queries whose options do not say: as every other client finds it.

``source`` asks once, on the driver, before a query travels: tasks run where neither the environment nor the files are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from headrace.finding import CA_VARIABLE, ClusterAddress, bootstrap_addresses
from headrace_common.core.secret import Secret
from headrace_spark.core import kafka_settings
from headrace_spark.core.options import TOKEN, ConnectorOptions

_BOOTSTRAP = kafka_settings.PREFIX + kafka_settings.BOOTSTRAP
CLUSTER_ID = "clusterId"
TOKEN_FILE = "headrace.tokenFile"
CA_FILE = "headrace.caFile"


def add_address(options: Mapping[str, str]) -> dict[str, str]:
    """
    ``options`` with the cluster's address, and its id where that is known; and the files that a profile or a local
    cluster names for it, which tasks cannot find themselves. What the environment names each process finds in its own.

    Raises:
        InvalidConfig: the environment or a profile names it wrongly.
    """
    given = {name.strip().lower() for name in options}
    if given & {_BOOTSTRAP, kafka_settings.BOOTSTRAP}:
        return dict(options)
    found = bootstrap_addresses(None)
    ca = found.ca if found.ca != os.environ.get(CA_VARIABLE) else None
    shown = {TOKEN_FILE: found.api_key_file} if TOKEN not in given else {}
    known = {CLUSTER_ID: found.cluster_id, CA_FILE: ca, **shown}
    told = {name: value for name, value in known.items() if value is not None and name.lower() not in given}
    return {**options, _BOOTSTRAP: str(found), **told}


def cluster_of(options: ConnectorOptions, task_key: Secret | None = None) -> ClusterAddress:
    """
    What the SDK's clients take. What the options do not name, CAs and what to show, is of each process's environment.

    Args:
        task_key: what a task was given to show.
    """
    found = bootstrap_addresses(options.bootstrap_servers, "kafka.bootstrap.servers")
    return replace(
        found,
        cluster_id=options.cluster_id,
        ca=options.ca_file or found.ca,
        api_key=task_key or options.token,
        api_key_file=options.token_file,
    )
