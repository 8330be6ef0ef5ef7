"""The broker's settings: all that is wrong is told at once, and nothing listens beyond this machine by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_broker.config import BrokerConfig
from headrace_common.core.errors import InvalidConfig
from headrace_common.core.ids import Endpoint
from headrace_common.runtime.env import load_settings


def load(*argv: str, **env: str) -> BrokerConfig:
    return load_settings(BrokerConfig, service="broker", argv=argv, env=env)


def test_defaults_are_safe_and_local() -> None:
    config = load()
    assert config.server.listen == Endpoint("127.0.0.1", 9292)
    assert (config.flush, config.tail_cache_bytes, config.disk_reserve_bytes) == ("group", 64 << 20, None)


def test_the_command_line_wins_over_the_environment() -> None:
    config = load("--flush", "os", HEADRACE_BROKER_FLUSH="always", HEADRACE_BROKER_CONTROLLERS="a:1,b:2")
    assert config.flush == "os"
    assert config.controllers == (Endpoint("a", 1), Endpoint("b", 2))


def test_all_that_is_wrong_is_told_at_once() -> None:
    small = ("--node-id", "-1", "--queue-bytes", "5", "--stall-ms-max", "1", "--tail-cache-bytes", "-1")
    with pytest.raises(InvalidConfig) as caught:
        load(*small, "--ready-ms-max", "-1", "--restart-wait-ms-max", "3600001", "--lock-wait-ms-max", "-1")
    for name in ("node_id", "queue_bytes", "stall_ms_max", "tail_cache_bytes"):
        assert name in str(caught.value)
    for name in ("ready_ms_max", "restart_wait_ms_max", "lock_wait_ms_max"):
        assert name in str(caught.value)
    with pytest.raises(InvalidConfig, match="--flash"):
        load("--flash", "os")


def test_as_kubernetes_sets_it() -> None:
    """By the environment, with the ordinal as id."""
    names = {"NODE_ID": "0", "LISTEN": "0.0.0.0:9292", "HEALTH_LISTEN": "0.0.0.0:9101", "RESTART_WAIT_MS_MAX": "90000"}
    names["LEAVE_SOCKET"] = "/tmp/leave.sock"
    outside = {"EXTERNAL_LISTEN": "0.0.0.0:9294", "EXTERNAL_ADVERTISE": "b0.example.com:31000"}
    config = load(**{f"HEADRACE_BROKER_{name}": value for name, value in {**names, **outside}.items()})
    assert (config.node_id, config.restart_wait_ms_max) == (0, 90_000)
    assert config.server.health_listen == Endpoint("0.0.0.0", 9101)
    assert config.leave_socket == Path("/tmp/leave.sock")
    assert config.external.external_advertise == Endpoint("b0.example.com", 31_000)


def test_a_socket_with_a_path_that_is_too_long_is_refused_with_what_to_do() -> None:
    assert load("--leave-socket", "/tmp/" + 102 * "x").leave_socket is not None
    for path in ("/tmp/" + 103 * "x", "/tmp/" + 52 * "ä"):
        with pytest.raises(InvalidConfig, match=r"leave_socket takes a path of at most 107 bytes.*give a shorter one"):
            load("--leave-socket", path)


def test_an_external_listener_needs_an_address_to_be_reached_by() -> None:
    with pytest.raises(InvalidConfig, match="external_advertise"):
        load("--external-listen", "0.0.0.0:9294")


def test_with_tls_nodes_have_a_listener_of_their_own() -> None:
    files = ("--tls-cert", "tls.crt", "--tls-key", "tls.key", "--tls-ca", "ca.crt")
    with pytest.raises(InvalidConfig, match="tls_cert needs internal_listen"):
        load(*files)
    assert load(*files, "--internal-listen", "127.0.0.1:0").server.tls.on
    assert load(HEADRACE_BROKER_TLS_TRUST_DOMAIN="prod").server.tls.trust_domain == "prod"
    with pytest.raises(InvalidConfig, match="are set together"):
        load("--tls-cert", "tls.crt")
    assert not load().server.tls.on
