"""
Who has to reach whom: the connections that the programs open, read from their code. What is not listed here must be
denied; ``test_networks.py`` compares the whole matrix.
"""

from __future__ import annotations

from typing import Final

GRPC: Final = {"broker": 9292, "controller": 9390, "coordinator": 9492, "admin": 9490}
REST, METRICS, HEALTH = 8080, 9100, 9101
ETCD_CLIENT, ETCD_PEER = 2379, 2380
EXTERNAL: Final = {"broker": 9294, "coordinator": 9494, "admin": 9496}

PORTS: Final = (*GRPC.values(), REST, METRICS, HEALTH, ETCD_CLIENT, ETCD_PEER, *EXTERNAL.values(), 53, 443, 22)
"""All that is tried, and some where nobody listens. The health port is for the kubelet alone, which no policy stops."""

WITHIN: Final[dict[tuple[str, str], set[int]]] = {
    ("broker", "broker"): {GRPC["broker"]},  # replication
    ("broker", "controller"): {GRPC["controller"]},  # registration, heartbeats, metadata, ISR changes
    ("broker", "coordinator"): {GRPC["coordinator"]},  # enrolment of partitions in transactions
    ("controller", "controller"): {GRPC["controller"]},  # standbys follow the active one
    ("controller", "etcd"): {ETCD_CLIENT},
    ("controller", "broker"): {GRPC["broker"]},  # log ends before an election, inventories after a restore
    ("controller", "coordinator"): {GRPC["coordinator"]},  # does a node that is silent still answer?
    ("coordinator", "controller"): {GRPC["controller"]},
    ("coordinator", "broker"): {GRPC["broker"]},  # its shards' logs
    ("coordinator", "coordinator"): {GRPC["coordinator"]},  # offsets of a transaction to the group's coordinator
    ("admin", "controller"): {GRPC["controller"]},
    ("admin", "broker"): {GRPC["broker"]},
    ("admin", "coordinator"): {GRPC["coordinator"]},
    ("admin", "admin"): {GRPC["admin"]},  # `headrace` run in an admin pod finds any of them
    ("etcd", "etcd"): {ETCD_CLIENT, ETCD_PEER},
    ("backup", "etcd"): {ETCD_CLIENT},
    ("job", "broker"): {GRPC["broker"]},  # topics from values, checks before an upgrade, the chart's test: clients
    ("job", "coordinator"): {GRPC["coordinator"]},
    ("job", "admin"): {GRPC["admin"]},
}
"""Between pods of one release, by component."""

CLIENT: Final[dict[str, set[int]]] = {
    "broker": {GRPC["broker"]},
    "coordinator": {GRPC["coordinator"]},
    "admin": {GRPC["admin"], REST},
}
"""What producers, consumers and people use."""

SCRAPED: Final = ("broker", "controller", "coordinator", "admin", "etcd")
