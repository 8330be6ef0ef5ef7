"""Settings: defaults that are Kafka's or ours, everything wrong told at once, and what reaches the state machines."""

from __future__ import annotations

import pytest

from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.env import HelpWanted, load_settings
from headrace_coordinator.config import CoordinatorConfig
from headrace_coordinator.core.settings import GroupSettings
from headrace_coordinator.core.transactions.settings import TransactionSettings


def load(*argv: str, **env: str) -> CoordinatorConfig:
    return load_settings(CoordinatorConfig, service="coordinator", argv=argv, env=env)


def test_defaults_are_those_of_the_groups() -> None:
    assert load().groups == GroupSettings()


def test_defaults_are_those_of_the_transactions() -> None:
    assert load().transactions == TransactionSettings()


def test_settings_reach_the_transactions() -> None:
    config = load("--transaction-max-timeout-ms", "5000", HEADRACE_COORDINATOR_UNIT_PREPARED_TIMEOUT_MS="7000")
    assert config.transactions == TransactionSettings(transaction_max_timeout_ms=5_000, unit_prepared_timeout_ms=7_000)


def test_settings_reach_the_groups() -> None:
    config = load(
        "--group-consumer-assignors",
        "range",
        "--offsets-retention-minutes=2",
        HEADRACE_COORDINATOR_GROUP_REJOIN_GRACE_MS="7",
    )
    groups = config.groups
    assert groups.group_consumer_assignors == ("range",)
    assert groups.offsets_retention_ms == 120_000
    assert groups.group_rejoin_grace_ms == 7


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (("--node-id", "-1"), "node_id takes 0 to"),
        (("--controllers", ""), "at least one address"),
        (("--group-min-session-timeout-ms", "2000000"), "is above group_max_session_timeout_ms"),
        (("--group-consumer-assignors", "sticky"), "takes uniform, range"),
        (("--group-consumer-assignors", ""), "takes uniform, range"),
        (("--group-consumer-heartbeat-interval-ms", "45000"), "must be below"),
        (("--group-max-size", "0"), "group_max_size takes 1"),
        (("--coordinator-append-timeout-ms", "1"), "takes 100"),
        (("--transaction-max-timeout-ms", "0"), "takes 1 to"),
        (("--transactional-id-expiration-ms", "1"), "takes 1000 to"),
        (("--transaction-prepared-max-ms", "1"), "takes 1000 to"),
        (("--shutdown-ms-max", "-1"), "takes 0"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(argv: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint):
        load(*argv)


def test_everything_wrong_is_told_at_once() -> None:
    with pytest.raises(InvalidConfig) as error:
        load("--node-id", "-1", "--group-max-size", "0")
    assert "node_id" in str(error.value)
    assert "group_max_size" in str(error.value)


def test_help_names_every_setting_with_its_variable() -> None:
    with pytest.raises(HelpWanted) as text:
        load("--help")
    for name in ("GROUP_CONSUMER_SESSION_TIMEOUT_MS", "GROUP_LAG_INTERVAL_MS", "LISTEN", "CONTROLLERS"):
        assert f"HEADRACE_COORDINATOR_{name}" in str(text.value)
