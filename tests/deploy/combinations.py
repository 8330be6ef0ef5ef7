"""Values that people give, one of each kind: all rules hold for what the chart makes of each of them."""

from __future__ import annotations

from typing import Any, Final

from tests.deploy import chart
from tests.deploy.manifests import SERVICES, Manifest

_PODS: Final = {
    "podLabels": {"team": "data"},
    "podAnnotations": {"example.com/note": "here"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "streams", "effect": "NoSchedule"}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "Exists"}]}]
            }
        }
    },
    "priorityClassName": "high",
    "extraEnv": [{"name": "GRPC_VERBOSITY", "value": "info"}],
    "startupProbe": {"failureThreshold": 3600},
}

STREAMS_APPS: Final[list[dict[str, Any]]] = [
    {"name": "billing", "image": "registry.example.com/billing:1.4", "app": "shop.billing:app", "replicas": 2},
    {"name": "words", "app": "words.py", "programs": {"words.py": "app = App('words')\n"}, "standbys": 1},
]

SPARK_JOBS: Final[list[dict[str, Any]]] = [
    {"name": "lake", "job": "topic_to_lake", "arguments": ["--topic", "orders", "--to", "/lake"]},
    {"name": "audit", "job": "retention_audit", "schedule": "@every 1h"},
]
SNAPSHOTS: Final[dict[str, Any]] = {"name": "snapshots", "job": "table_snapshot"}

CONNECT: Final[dict[str, Any]] = {
    "connect": {
        "enabled": True,
        "connectors": {
            "shop-in": {
                "connector.class": "files",
                "path": "/data",
                "format": "lines",
                "topic": "shop",
                "tasks.max": 2,
            },
            "shop.out": {
                "connector.class": "sql-sink",
                "topics": ["shop"],
                "connection.url": "postgresql://db/shop",
            },
        },
        "egress": [{"to": [{"ipBlock": {"cidr": "192.0.2.7/32"}}], "ports": [{"port": 5432}]}],
    }
}

PLAIN: Final[dict[str, Any]] = {"tls": {"enabled": False}, "security": {"mode": "open"}}
"""As it was before it was closed by default."""

OURS: Final = {"broker": "b", "controller": "c", "coordinator": "d", "admin": "a", "ca": "ours"}

BY_NAME: Final[dict[str, dict[str, Any]]] = {
    "defaults": {},
    "dev": {},
    "one of each": {
        "statefulset": {"replicas": 1},
        "controller": {"replicas": 1},
        "coordinator": {"replicas": 1},
        "admin": {"replicas": 1},
        "etcd": {"replicas": 1},
        "audit": {"to": []},
    },
    "many": {
        "statefulset": {"replicas": 12},
        "coordinator": {"replicas": 5},
        "controller": {"replicas": 5},
        "etcd": {"replicas": 5},
        "audit": {"onFull": "drop"},
    },
    "names": {"fullnameOverride": "the-log", "clusterDomain": "k8s.example"},
    "short name": {"nameOverride": "log"},
    "etcd of ours": {
        "etcd": {"external": {"endpoints": ["etcd-0.etcd:2379", "etcd-1.etcd:2379"], "tlsSecret": "g"}},
        "audit": {"to": ["topic"], "storage": {"size": "1Gi", "storageClass": "fast"}},
    },
    "no backup": {"etcd": {"backup": {"enabled": False}}},
    "restore": {"etcd": {"restore": {"enabled": True, "file": "headrace-1.backup", "brokers": [0, 1, 2]}}},
    "load balancers": {"external": {"enabled": True, "type": "LoadBalancer", "domain": "example.com"}},
    "node ports": {"external": {"enabled": True, "type": "NodePort", "host": "node.example.com"}},
    "open and plain": CONNECT | PLAIN | {"streamsApps": STREAMS_APPS, "topics": [{"name": "orders"}]},
    "gateway": {
        "external": {
            "enabled": True,
            "type": "Gateway",
            "domain": "example.com",
            "gateway": {"parentRefs": [{"name": "edge", "namespace": "infra"}]},
        }
    },
    "own way in": {
        "external": {"enabled": True, "type": "ClusterIP", "domain": "example.com", "sourceRanges": ["198.51.100.0/24"]}
    },
    "monitoring": {
        "monitoring": {
            "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}, "interval": "15s"},
            "prometheusRule": {"enabled": True, "runbookUrl": "https://example.com/headrace/"},
            "dashboards": {"enabled": True, "annotations": {"grafana_folder": "Headrace"}},
        }
    },
    "topics and settings": {
        "topics": [
            {"name": "orders", "partitions": 12, "replicationFactor": 3, "configs": {"retention.ms": 86400000}},
            {"name": "prices", "partitions": 3, "configs": {"cleanup.policy": "compact"}},
        ],
        "config": {
            "cluster": {"log.retention.ms": 3600000},
            "broker": {"tail_cache_bytes": 134217728, "otlp_endpoint": "collector.tracing:4317"},
            "controller": {"drain_ms_max": 2000},
        },
        "networkPolicy": {
            "tracing": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "tracing"}}}]
        },
    },
    "images from elsewhere": {
        "image": {
            "registry": "registry.example.com:5000",
            "repository": "mirror/headrace",
            "tag": "0.1.0-rc.1",
            "digests": dict.fromkeys(SERVICES, f"sha256:{'0' * 64}"),
            "pullPolicy": "Always",
            "pullSecrets": ["registry"],
        }
    },
    "spark": {"sparkJobs": SPARK_JOBS},
    "streams": {"streamsApps": STREAMS_APPS},
    "streams and topics": {"streamsApps": STREAMS_APPS, "topics": [{"name": "lines", "partitions": 6}]},
    "connect": CONNECT,
    "snapshots with Spark": CONNECT | {"sparkJobs": [SNAPSHOTS]},
    "connect alone": {"connect": {"enabled": True, "replicas": 1}},
    "open network": {"networkPolicy": {"enabled": False}},
    "node token of ours": {"nodeToken": {"existingSecret": "the-token"}},
    "TLS": {"tls": {"hosts": ["192.0.2.7", "log.example.com"]}, "security": {"mode": "open"}},
    "TLS for all": CONNECT
    | {
        "security": {"mode": "open"},
        "streamsApps": STREAMS_APPS,
        "topics": [{"name": "orders"}],
    },
    "closed": CONNECT
    | {
        "streamsApps": STREAMS_APPS,
        "sparkJobs": SPARK_JOBS,
        "topics": [{"name": "orders"}],
    },
    "closed with keys of ours": {
        "security": {
            "superUsers": ["User:alice", "ServiceAccount:shop/orders"],
            "admin": {"existingSecret": "the-admin"},
        },
        "connect": {"enabled": True, "apiKeySecret": "of-connect"},
        "streamsApps": [each | {"apiKeySecret": f"of-{each['name']}"} for each in STREAMS_APPS],
    },
    "permissive": {"security": {"mode": "permissive"}, "tls": {"mode": "prefer"}},
    "certificates of ours": {
        "tls": {"existing": OURS | {"etcd": "e", "etcdClient": "f", "connect": "h", "streams": "i"}},
        "connect": {"enabled": True},
        "streamsApps": STREAMS_APPS,
    },
    "cert-manager": {
        "tls": {
            "certManager": {"issuerRef": {"name": "ca", "kind": "ClusterIssuer"}},
            "hosts": ["192.0.2.7", "log.e.com"],
        },
        "connect": {"enabled": True},
        "streamsApps": STREAMS_APPS,
        "topics": [{"name": "orders"}],
    },
    "no pod for people": {"client": {"enabled": False}},
    "rights": {
        "users": [{"name": "billing"}, {"name": "shop", "days": 30}],
        "quotas": [{"entity": "users/User:billing", "limits": {"producer_byte_rate": 104857600}}],
        "access": {
            "roles": [{"name": "reader", "gives": {"topic": ["read"]}}],
            "bindings": [{"principal": "ServiceAccount:shop/orders", "role": "producer", "name": "orders"}],
            "rules": [{"principal": "User:eve", "deny": ["describe"], "type": "cluster"}],
        },
    },
    "issuers": {
        "auth": {
            "kubernetes": {"enabled": False},
            "oidc": [
                {"alias": "okta", "iss": "https://okta.example", "audiences": ["log"], "jwks": "https://okta.example/k"}
                | {
                    "groupsClaim": "groups",
                    "groupsPrefix": "okta-",
                    "principalClaim": "email",
                    "algorithms": ["ES256"],
                },
                {"alias": "inner", "iss": "inner", "audiences": ["log"], "jwks": "https://id.infra:8443/keys"}
                | {"ca": "-----BEGIN CERTIFICATE-----", "egress": [{"ipBlock": {"cidr": "192.0.2.9/32"}}]},
            ],
        }
    },
    "clients with certificates": {"auth": {"mtls": {"enabled": True, "clientCa": {"existingSecret": "their-ca"}}}},
    "no budgets": {"podDisruptionBudget": {"enabled": False}},
    "placement": dict.fromkeys(("statefulset", "controller", "coordinator", "admin", "etcd"), _PODS),
    "racks": {"rackAwareness": {"enabled": True}, "topologySpread": {"zone": "DoNotSchedule"}},
    "storage": {
        "storage": {"size": "500Gi", "storageClass": "fast"},
        "etcd": {"storage": {"storageClass": "faster"}, "backup": {"storage": {"storageClass": "shared"}}},
    },
}

NAMES: Final = tuple(BY_NAME)


def render(name: str) -> list[Manifest]:
    """The objects; yours to change."""
    return chart.render(BY_NAME[name], dev=name == "dev")
