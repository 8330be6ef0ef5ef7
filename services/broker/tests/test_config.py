"""The broker's settings: all that is wrong is told at once, and nothing listens beyond this machine by itself."""

from __future__ import annotations

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
    with pytest.raises(InvalidConfig) as caught:
        load("--node-id", "-1", "--queue-bytes", "5", "--stall-ms-max", "1", "--tail-cache-bytes", "-1")
    for name in ("node_id", "queue_bytes", "stall_ms_max", "tail_cache_bytes"):
        assert name in str(caught.value)
    with pytest.raises(InvalidConfig, match="--flash"):
        load("--flash", "os")
