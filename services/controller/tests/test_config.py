"""Settings: defaults as the README says, environment and command line, everything wrong at once."""

from __future__ import annotations

import pytest

from headrace_common.core.access.rows import Mode
from headrace_common.core.errors import InvalidConfig
from headrace_common.core.ids import Endpoint
from headrace_common.runtime.env import load_settings
from headrace_controller.config import ControllerConfig


def load(*argv: str, **env: str) -> ControllerConfig:
    return load_settings(ControllerConfig, service="controller", argv=argv, env=env)


def test_defaults() -> None:
    config = load()
    assert config.server.listen == Endpoint("127.0.0.1", 9390)
    assert config.etcd == (Endpoint("127.0.0.1", 2379),)
    assert (config.prefix, config.lease_ttl_s) == ("/headrace/headrace/", 3)
    assert (config.liveness.heartbeat_interval_ms, config.liveness.session_timeout_ms) == (2_000, 9_000)


def test_options_win_over_the_environment() -> None:
    config = load(
        "--node-id", "7", "--etcd", "a:1,b:2", HEADRACE_CONTROLLER_NODE_ID="5", HEADRACE_CONTROLLER_CLUSTER="x"
    )
    assert (config.node_id, config.prefix) == (7, "/headrace/x/")
    assert config.etcd == (Endpoint("a", 1), Endpoint("b", 2))


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (("--node-id", "-1"), "node_id takes 0"),
        (("--cluster", "a/b"), "without '/'"),
        (("--lease-ttl-s", "1"), "lease_ttl_s takes 2 to 60"),
        (("--etcd-timeout-ms", "1"), "etcd_timeout_ms takes 100"),
        (("--etcd-ca", "ca.pem", "--etcd-cert", "a.pem"), "etcd_cert and etcd_key are set together"),
        (("--etcd-cert", "a.pem", "--etcd-key", "a.key"), "etcd_cert needs etcd_ca"),
        (("--watcher-queue-max", "0"), "watcher_queue_max"),
        (("--session-timeout-ms", "100"), "at least twice"),
        (("--stream-grace-ms", "-1"), "stream_grace_ms takes 0 or more"),
        (("--access-mode", "shut"), "access_mode takes open, permissive, closed"),
        (("--access-mode", "closed"), "closed needs nodes that prove"),
        (("--access-mode", "closed", "--node-token-file", "t", "--node-token-demanded", "false"), "closed needs nodes"),
        (("--access-mode", "permissive", "--feature-level-max", "6"), "needs feature_level_max 7"),
        (("--super-users", "User:alice,bob"), "super_users: 'bob' names no principal"),
        (("--super-users", "User:ANONYMOUS"), "super_users: User:ANONYMOUS cannot be one"),
        (("--super-users", "Node:admin"), "super_users: Node:admin cannot be one"),
    ],
)
def test_what_is_wrong_is_told(argv: tuple[str, ...], text: str) -> None:
    with pytest.raises(InvalidConfig, match=text):
        load(*argv)


def test_a_closed_cluster_is_what_nodes_with_a_token_or_certificates_have() -> None:
    config = load("--access-mode", "closed", "--node-token-file", "t", "--super-users", "User:alice, Group:admins")
    access = config.access
    assert (access.mode, access.nodes_proven, access.configured.keys) == (Mode.CLOSED, True, ())
    assert sorted(map(str, access.configured.super_users)) == ["Group:admins", "User:alice"]
    assert load("--access-mode", "closed", "--tls-cert", "c", "--tls-key", "k", "--tls-ca", "a").nodes_proven
    assert (load().mode, load().nodes_proven) == (Mode.OPEN, False)


def test_two_wrong_settings_are_told_together() -> None:
    with pytest.raises(InvalidConfig, match=r"(?s)node_id.*lease_ttl_s"):
        load("--node-id", "-1", "--lease-ttl-s", "1")
