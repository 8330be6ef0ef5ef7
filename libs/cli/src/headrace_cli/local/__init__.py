"""
A whole cluster on one machine: real etcd, controllers, brokers and admin, each a process of its own.

``LocalCluster`` is what tests, the demo and ``headrace up`` use; ``supervisor`` is the process behind it.
"""

from headrace_cli.local.cluster import LocalCluster
from headrace_cli.local.failures import (
    AlreadyRunning,
    LocalClusterFailed,
    NotRunning,
    StartFailed,
    StartTimedOut,
)
from headrace_cli.local.state import ProcessState

__all__ = [
    "AlreadyRunning",
    "LocalCluster",
    "LocalClusterFailed",
    "NotRunning",
    "ProcessState",
    "StartFailed",
    "StartTimedOut",
]
