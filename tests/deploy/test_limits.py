"""The limits in the values' schema are those of the programs that read the settings, so that neither drifts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from tests.deploy import chart, settings
from tests.deploy.manifests import SERVICES
from tools.settings import DYNAMIC, EXACT_MAX

from headrace_common.core.errors import InvalidConfig
from headrace_common.core.setting import Setting
from headrace_common.core.setting_tables import TOPIC_SETTINGS

pytestmark = pytest.mark.chart

_WITH = {
    "session_timeout_ms": {"heartbeat_interval_ms": 50},
    "heartbeat_interval_ms": {"session_timeout_ms": 2 * EXACT_MAX},
    "group_min_session_timeout_ms": {"group_max_session_timeout_ms": 86_400_000},
    "group_max_session_timeout_ms": {"group_min_session_timeout_ms": 100},
    "group_consumer_heartbeat_interval_ms": {"group_consumer_session_timeout_ms": 86_400_000},
    "group_consumer_session_timeout_ms": {"group_consumer_heartbeat_interval_ms": 1},
}
"""What has to be given with a setting so that only its own limits count."""


def _numbers() -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    config = chart.schema()["properties"]["config"]["properties"]
    for service in SERVICES:
        for name, part in config[service]["properties"].items():
            if part.get("type") == "integer":
                yield service, name, part


def taken(service: str, given: Mapping[str, object]) -> bool:
    """Whether the program starts with these settings."""
    try:
        settings.load(service, {f"HEADRACE_{service}_{name}".upper(): str(value) for name, value in given.items()})
    except InvalidConfig:
        return False
    return True


@pytest.mark.parametrize(
    ("service", "name", "part"), list(_numbers()), ids=lambda part: part if isinstance(part, str) else ""
)
def test_a_settings_limits_are_those_of_its_program(service: str, name: str, part: Mapping[str, Any]) -> None:
    def starts_with(value: int) -> bool:
        return taken(service, _WITH.get(name, {}) | {name: value})

    low, high = part["minimum"], part.get("maximum")
    assert starts_with(low), low
    assert not starts_with(low - 1), low - 1
    if high is None:
        assert starts_with(EXACT_MAX)
    else:
        assert starts_with(high), high
        assert not starts_with(high + 1), high + 1


@pytest.mark.parametrize("kind", ["cluster", "topics"])
def test_a_dynamic_settings_limits_are_those_of_the_product(kind: str) -> None:
    schema = chart.schema()["properties"]
    parts = schema["config"]["properties"]["cluster"] if kind == "cluster" else schema["topics"]["items"]
    parts = parts["properties"] if kind == "cluster" else parts["properties"]["configs"]["properties"]
    table: Mapping[str, Setting] = DYNAMIC if kind == "cluster" else TOPIC_SETTINGS
    for name, part in parts.items():
        if "minimum" in part:
            low, high = part["minimum"], part.get("maximum", EXACT_MAX)
            table[name].check(str(low))
            table[name].check(str(high))
            for beyond in (low - 1, high + 1) if "maximum" in part else (low - 1,):
                with pytest.raises(InvalidConfig):
                    table[name].check(str(beyond))


_TOGETHER: list[tuple[str, dict[str, int]]] = [
    *(("controller", {"session_timeout_ms": value}) for value in (3999, 4000)),
    *(("controller", {"heartbeat_interval_ms": value}) for value in (4500, 4501)),
    ("controller", {"heartbeat_interval_ms": 5000, "session_timeout_ms": 10000}),
    ("controller", {"heartbeat_interval_ms": 5001, "session_timeout_ms": 10000}),
    *(("coordinator", {"group_min_session_timeout_ms": value}) for value in (1_800_000, 1_800_001)),
    *(("coordinator", {"group_max_session_timeout_ms": value}) for value in (6_000, 5_999)),
    *(("coordinator", {"group_consumer_session_timeout_ms": value}) for value in (3_001, 3_000)),
    *(("coordinator", {"group_consumer_heartbeat_interval_ms": value}) for value in (44_999, 45_000)),
]


@pytest.mark.parametrize(("service", "given"), _TOGETHER, ids=str)
def test_settings_that_cannot_be_together_are_refused_where_their_program_would(
    service: str, given: dict[str, int]
) -> None:
    """Both sides of each limit; what is not given counts with its default."""
    if taken(service, given):
        assert chart.text({"config": {service: given}})
    else:
        with pytest.raises(chart.Refused, match=f"config.{service}.{next(iter(given))}"):
            chart.text({"config": {service: given}})


@pytest.mark.parametrize("name", ["headrace", "Blue.1", "a b", "_x", "a/b", "", "bläu", "-x"])
def test_a_clusters_name_is_one_that_controllers_and_backups_take(name: str) -> None:
    if taken("controller", {"cluster": name}) and not name.startswith("-"):
        assert chart.text({"config": {"controller": {"cluster": name}}})
    else:
        with pytest.raises(chart.Refused, match="/config/controller/cluster"):
            chart.text({"config": {"controller": {"cluster": name}}})


@pytest.mark.parametrize(
    "given", ["uniform", "range,uniform", "range, uniform", ["range"], "", [], "sticky", ["range", "x"]]
)
def test_assignors_are_those_that_there_are(given: Any) -> None:
    text = ",".join(given) if isinstance(given, list) else given
    values = {"config": {"coordinator": {"group_consumer_assignors": given}}}
    if taken("coordinator", {"group_consumer_assignors": text}):
        assert chart.text(values)
    else:
        with pytest.raises(chart.Refused, match="group_consumer_assignors"):
            chart.text(values)
