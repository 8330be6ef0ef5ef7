"""Names of what a connector has in a cluster: owners, transactional ids, groups."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from headrace_common.core.ids import in_ids

NAME_BYTES_MAX: Final = 80
"""Of a connector's name, as it stands in ids."""
PLUGIN_PATH: Final = "HEADRACE_CONNECT_PLUGIN_PATH"
"""Variable of the environment in which a worker tells its hosts ``plugin_path``: folders, with commas."""
SPARK_APPLICATION: Final = "HEADRACE_CONNECT_SPARK_APPLICATION"
"""The same of ``spark_application``: a file."""
CLUSTER_BYTES_MAX: Final = 100
"""Of the name of a Connect cluster, as it stands in ids: an owner has at most 200."""

_SNAPSHOT_CHARACTERS_MAX: Final = 130


def owner_of(cluster: str, connector: str) -> str:
    """Under which the tasks of a source claim their transactional ids."""
    return f"connect.{in_ids(cluster)}.{in_ids(connector)}"


def transactional_id(cluster: str, connector: str, task: int) -> str:
    """Of a source's task."""
    return f"{owner_of(cluster, connector)}/{task}"


def dead_letters_id(cluster: str, connector: str, task: int) -> str:
    """Of the dead letters of a sink's task: of no owner, so that nothing times them out."""
    return f"connect-dlq.{in_ids(cluster)}.{in_ids(connector)}.{task}"


def snapshot_owner(cluster: str, connector: str) -> str:
    """Of what Spark reads for a source, as one unit; such owners are shorter than others."""
    name = f"{in_ids(cluster)}.{in_ids(connector)}"
    if len(name) > _SNAPSHOT_CHARACTERS_MAX:
        name = blake2b(name.encode(), digest_size=16).hexdigest()
    return f"connect-snapshot.{name}"


def group_of(connector: str) -> str:
    """Of which a sink's tasks are members; Kafka's name."""
    return f"connect-{connector}"
