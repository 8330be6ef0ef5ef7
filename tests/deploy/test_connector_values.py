"""
Connectors in the values: what the API server or a worker would refuse late, in the job that applies them, is refused
before anything is changed, with the connector and the key; what YAML would change in silence too.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.deploy import chart
from tests.deploy.manifests import one

from headrace_common.core.ids import in_ids
from headrace_connect.core.names import NAME_BYTES_MAX
from headrace_connect.runtime.catalog import find_connector, list_connectors
from headrace_connect.runtime.configuring import describe_plugin
from headrace_connect.settings import ValueType
from headrace_connect_worker.core.changes import CONFIG_BYTES_MAX
from headrace_connect_worker.core.commands import check_name
from headrace_connect_worker.core.policy import has_password
from headrace_connect_worker.core.refusals import BadCommand

pytestmark = pytest.mark.chart
SECRETS = ["db", "lake.keys"]
PLAIN = "stands here for all to read"


def values(name: str = "a", connect: dict[str, Any] | None = None, **config: Any) -> dict[str, Any]:
    """Of a chart with one connector; ``config`` has underscores for dots."""
    given = {key.replace("_", "."): value for key, value in config.items()}
    connectors = {name: {"connector.class": "files", **given}}
    return {"connect": {"enabled": True, "secrets": SECRETS, "connectors": connectors, **(connect or {})}}


def applied(name: str = "a", **config: Any) -> dict[str, str]:
    data = one(chart.render(values(name, **config)), "ConfigMap/headrace-connect-apply")["data"]
    found: dict[str, str] = json.loads(data[f"{name}.json"])
    return found


def refused(given: dict[str, Any]) -> str:
    with pytest.raises(chart.Refused) as found:
        chart.text(given)
    return str(found.value)


# --- names ----------------------------------------------------------------------------------------------------------


def of_ids(size: int, dots: int) -> str:
    """A name with so many dots that has ``size`` bytes as it stands in ids."""
    name = "a." * dots + "a" * (size - 4 * dots)
    assert len(in_ids(name)) == size
    return name


@pytest.mark.parametrize("dots", [0, 1, 7, 19])
def test_a_name_is_as_long_as_a_worker_takes_it(dots: int) -> None:
    name = of_ids(NAME_BYTES_MAX, dots)
    check_name(name)
    assert applied(name)["name"] == name


@pytest.mark.parametrize("dots", [1, 7, 19])
def test_a_name_that_is_too_long_in_ids_is_refused_with_the_limit(dots: int) -> None:
    name = of_ids(NAME_BYTES_MAX + 1, dots)
    with pytest.raises(BadCommand):
        check_name(name)
    said = refused(values(name))
    assert f"connect.connectors.{name}: " in said
    assert f"{NAME_BYTES_MAX + 1} bytes in ids, where a dot is %2E; {NAME_BYTES_MAX} is the most" in said


# --- values as YAML has them ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"),
        ("1", "1"),
        (86_400_000, "86400000"),
        (2**53 - 1, "9007199254740991"),
        (-(2**53) + 1, "-9007199254740991"),
        (0.25, "0.25"),
        (True, "true"),
        (["a", 86_400_000, 0.5, True], "a,86400000,0.5,true"),
        ([], ""),
        (str(2**63), "9223372036854775808"),
        ("public[.]a{1,2}", "public[.]a{1,2}"),
        ("$1 ${x} a:b", "$1 ${x} a:b"),
    ],
)
def test_a_value_arrives_as_it_was_written(value: Any, text: str) -> None:
    assert applied(x=value)["x"] == text


@pytest.mark.parametrize("value", [2**53, -(2**53), 2**63, 1e300, [1, 2**53]])
def test_a_number_that_yaml_rounds_is_refused(value: Any) -> None:
    assert "connect.connectors.a.x: " in (said := refused(values(x=value)))
    assert "put it in quotes" in said


def test_what_would_be_another_list_is_refused() -> None:
    said = refused(values(table_include_list=["public[.]a{1,2}", "b"]))
    assert 'connect.connectors.a.table.include.list: "public[.]a{1,2}" has a comma, which would part it' in said


def test_a_configuration_is_as_large_as_a_worker_takes_it() -> None:
    rest = sum(map(len, ("connector.class", "files", "name", "a", "x")))
    assert len(applied(x="é" * ((CONFIG_BYTES_MAX - rest) // 2))["x"]) > 100_000
    said = refused(values(x="é" * ((CONFIG_BYTES_MAX - rest) // 2 + 1)))
    assert "connect.connectors.a: the configuration has " in said
    assert f"{CONFIG_BYTES_MAX} is the most" in said


def test_all_configurations_fit_into_one_object() -> None:
    many = {str(n): {"connector.class": "files", "x": "y" * 250_000} for n in range(5)}
    assert "connect.connectors: all of them together have" in refused(values(connect={"connectors": many}))


# --- secrets --------------------------------------------------------------------------------------------------------


def secret_settings() -> list[tuple[str, str]]:
    """Each setting that is a secret, of each connector that ships."""
    return [
        (listed.name, found.key)
        for listed in list_connectors()
        for found in describe_plugin(find_connector(listed.name))
        if found.type is ValueType.PASSWORD
    ]


@pytest.mark.parametrize(("connector", "key"), secret_settings())
def test_a_secret_in_plain_is_refused_and_not_shown(connector: str, key: str) -> None:
    def given(value: Any, **more: Any) -> dict[str, Any]:
        return values(connect={"connectors": {"a": {"connector.class": connector, key: value, **more}}})

    said = refused(given("hunter2"))
    assert f"connect.connectors.a.{key}: " in said
    assert PLAIN in said
    assert "hunter2" not in said
    assert refused(given(123_456)).count("123456") == 0
    assert chart.render(given("${dir:/etc/headrace/secrets/db:password}"))
    assert chart.render(given(""))
    for yes in (True, "true", "True"):
        assert chart.render(given("hunter2", **{"allow.plain.secrets": yes}))
    assert PLAIN in refused(given("hunter2", **{"allow.plain.secrets": False}))


@pytest.mark.parametrize("key", ["transforms.x.api_key", "producer.override.Token", "pwd", "aws.secret.access.key"])
def test_a_key_that_says_that_it_is_a_secret_is_one(key: str) -> None:
    assert PLAIN in refused(values(**{key: "hunter2"}))


@pytest.mark.parametrize("key", ["token.url", "topic", "secrets.directory", "passwords"])
def test_another_key_is_none(key: str) -> None:
    assert applied(**{key: "hunter2"})


@pytest.mark.parametrize(
    "url", ["postgresql://me:hunter2@db/shop", "postgresql://:hunter2@db", "https://me:a${env:X}b@c"]
)
def test_a_password_in_a_url_is_refused_and_not_shown(url: str) -> None:
    assert has_password(url)
    said = refused(values(connection_url=url) | {"config": {"connect": {"env_allowed": "X"}}})
    assert "connect.connectors.a.connection.url: " in said
    assert "hunter2" not in said


@pytest.mark.parametrize(
    "url", ["postgresql://db:5432/shop", "postgresql://me@db/shop", "https://a/b:c@d", "postgresql://me:${env:X}@db"]
)
def test_a_url_without_one_is_taken(url: str) -> None:
    assert not has_password(url)
    assert chart.render(values(connection_url=url) | {"config": {"connect": {"env_allowed": ["W", "X"]}}})


REFERENCES: list[tuple[str, str]] = [
    ("${dir:/etc/headrace/secrets/dv:password}", "connect.secrets does not have dv"),
    ("x${file:/etc/headrace/secrets/other/f:k}y", "connect.secrets does not have other"),
    ("${dir:/etc/headrace/secrets/lake:keys}", "connect.secrets does not have lake"),
    ("${dir:/etc/headrace/secrets:db}", "is below /etc/headrace/secrets/NAME"),
    ("${dir:/etc/headrace/secrets/:db}", "is below /etc/headrace/secrets/NAME"),
    ("${dir:/etc/headrace/secrets/db/../../x:k}", "is below /etc/headrace/secrets/NAME"),
    ("${file:/run/secrets/db:k}", "is below /etc/headrace/secrets/NAME"),
    ("${file:db:k}", "is below /etc/headrace/secrets/NAME"),
    ("${dir:/etc/headrace/secrets/db}", "is not complete"),
    ("${dir:/etc/headrace/secrets/db:}", "is not complete"),
    ("${env:}", "is not complete"),
    ("${env:PASSWORD}", "config.connect.env_allowed does not have PASSWORD"),
    ("${secret:db:password}", 'there is no "secret"'),
    ("${dir:/etc/headrace/secrets/db:a}${dir:/etc/headrace/secrets/dv:a}", "connect.secrets does not have dv"),
]


@pytest.mark.parametrize(("text", "says"), REFERENCES)
def test_a_reference_to_what_is_not_there_is_refused(text: str, says: str) -> None:
    for given in (text, ["b", text]):
        said = refused(values(x=given))
        assert "connect.connectors.a.x: " in said
        assert says in said


@pytest.mark.parametrize(
    "text",
    [
        "${dir:/etc/headrace/secrets/db:password}",
        "${dir:/etc/headrace/secrets/lake.keys:id}",
        "${file:/etc/headrace/secrets/db/some.properties:user}",
        "postgresql://${dir:/etc/headrace/secrets/db:user}@db/${dir:/etc/headrace/secrets/db:name}",
    ],
)
def test_a_reference_to_what_is_mounted_is_taken(text: str) -> None:
    assert applied(x=text)["x"] == text
