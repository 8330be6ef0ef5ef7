"""
Who has to reach whom: the connections that the programs open, read from their code. What is not listed here must be
denied; ``test_networks.py`` compares the whole matrix.
"""

from __future__ import annotations

from typing import Final

GRPC: Final = {"broker": 9292, "controller": 9390, "coordinator": 9492, "admin": 9490, "streams": 9590}
CONNECT_REST: Final = 8083
INTERNAL: Final = {"broker": 9293, "coordinator": 9493}
"""For the other services alone."""
AS_NODE: Final = {component: {GRPC[component], port} for component, port in INTERNAL.items()}
"""Where the other services come: those of a version before internal listeners, and to it, where clients do."""

REST, METRICS, HEALTH = 8080, 9100, 9101
ETCD_CLIENT, ETCD_PEER = 2379, 2380
EXTERNAL: Final = {"broker": 9294, "coordinator": 9494, "admin": 9496}
MTLS: Final = {"broker": 9295, "coordinator": 9495, "admin": 9497}
"""For clients alone, where there are such ports."""

_LISTENERS: Final = (*GRPC.values(), *INTERNAL.values(), *EXTERNAL.values(), *MTLS.values())
PORTS: Final = (
    *_LISTENERS,
    CONNECT_REST,
    REST,
    METRICS,
    HEALTH,
    ETCD_CLIENT,
    ETCD_PEER,
    53,
    443,
    6443,
    8443,
    16443,
    22,
)
"""All that is tried, and some where nobody listens. The health port is for the kubelet alone, which no policy stops."""

WITHIN: Final[dict[tuple[str, str], set[int]]] = {
    ("broker", "broker"): AS_NODE["broker"],  # replication
    ("broker", "controller"): {GRPC["controller"]},  # registration, heartbeats, metadata, ISR changes
    ("broker", "coordinator"): AS_NODE["coordinator"],  # enrolment of partitions in transactions
    ("controller", "controller"): {GRPC["controller"]},  # standbys follow the active one
    ("controller", "etcd"): {ETCD_CLIENT},
    ("controller", "broker"): AS_NODE["broker"],  # log ends before an election, inventories after a restore
    ("controller", "coordinator"): AS_NODE["coordinator"],  # does a node that is silent still answer?
    ("controller", "admin"): {GRPC["admin"]},  # the same
    ("coordinator", "controller"): {GRPC["controller"]},
    ("coordinator", "broker"): AS_NODE["broker"],  # its shards' logs
    ("coordinator", "coordinator"): AS_NODE["coordinator"],  # offsets of a transaction to the group's coordinator
    ("admin", "controller"): {GRPC["controller"]},
    ("admin", "broker"): AS_NODE["broker"],
    ("admin", "coordinator"): AS_NODE["coordinator"],
    ("admin", "admin"): {GRPC["admin"]},  # `headrace` run in an admin pod finds any of them
    ("admin", "streams"): {GRPC["streams"]},  # REST's rows of a store, from the worker that has them
    ("etcd", "etcd"): {ETCD_CLIENT, ETCD_PEER},
    ("backup", "etcd"): {ETCD_CLIENT},
    ("job", "broker"): {GRPC["broker"]},  # topics from values, checks before an upgrade, the chart's test: clients
    ("job", "coordinator"): {GRPC["coordinator"]},
    ("job", "admin"): {GRPC["admin"]},
    ("client", "broker"): {GRPC["broker"]},  # the pod for people
    ("client", "coordinator"): {GRPC["coordinator"]},
    ("client", "admin"): {GRPC["admin"], REST},
    ("users", "broker"): {GRPC["broker"]},  # keys of users
    ("users", "admin"): {GRPC["admin"]},
    ("streams", "streams"): {GRPC["streams"]},  # `headrace streams state` run in a worker's pod
    ("streams", "broker"): {GRPC["broker"]},  # workers of apps: clients
    ("streams", "coordinator"): {GRPC["coordinator"]},
    ("streams", "admin"): {GRPC["admin"]},
    ("connect", "broker"): {GRPC["broker"]},  # workers of Connect: clients
    ("connect", "coordinator"): {GRPC["coordinator"]},
    ("connect", "admin"): {GRPC["admin"]},
    ("connect", "connect"): {CONNECT_REST},  # requests go on to the worker that leads
    ("job", "connect"): {CONNECT_REST},  # connectors from values
}
"""Between pods of one release, by component."""

CLIENT: Final[dict[str, set[int]]] = {
    "broker": {GRPC["broker"]},
    "coordinator": {GRPC["coordinator"]},
    "admin": {GRPC["admin"], REST},
    "streams": {GRPC["streams"]},
}
"""What producers, consumers and people use."""

API_SERVER: Final = {443, 6443, 8443, 16443}
"""
Where it listens on the clusters that people have, wherever it is: asked by jobs that make Secrets, by controllers
for the keys of pods' tokens, and by workers of Connect that may start Spark applications.
"""

SCRAPED: Final = ("broker", "controller", "coordinator", "admin", "etcd", "streams", "connect")
