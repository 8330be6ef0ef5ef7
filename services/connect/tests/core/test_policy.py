"""What configurations that came by REST may reach: nothing, but for what the settings of the worker name."""

from __future__ import annotations

import pytest

from headrace_connect_worker.core.policy import Policy, find_passwords

NOTHING = Policy()
SOME = Policy(
    classes=("shop:Weather",),
    python=("shop.money:round",),
    secrets=("/etc/headrace/", "/run/secrets"),
    variables=("SHOP_PASSWORD",),
    files=("/data",),
    programs=("tap-csv", "/opt/taps/tap-x"),
)
INSTALLED = ("headrace_connect.connectors.files:FilesSource",)


def wrong(policy: Policy, key: str, value: str) -> list[str]:
    return [problem.key for problem in policy.find_problems({key: value}, INSTALLED)]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("connector.class", "files"),
        ("connector.class", "io.debezium.connector.postgresql.PostgresConnector"),
        ("connector.class", INSTALLED[0]),
        ("transforms.a.type", "MaskField$Value"),
        ("transforms.a.type", "org.apache.kafka.connect.transforms.MaskField$Value"),
        ("path", "s3://bucket/path"),
        ("connection.url", "postgresql://db/shop"),
        ("connection.url", "jdbc:postgresql://db/shop"),
        ("url", "https://example.org/weather"),
        ("value.converter.schema", '{"type": "record", "name": "x"}'),
        ("csv.delimiter", "/"),
        ("topics.regex", "shop-.*"),
        ("query", "/* all */ select * from t"),
        ("connection.url", "postgresql://shop@db:5432/shop"),
        ("url", "https://example.org:443/a@b"),
        ("topic", ""),
        ("path", ""),
        ("config.start_date", "2024-01-01T00:00:00Z"),
        ("config.page_size", "100"),
        ("config.tables", '[{"name": "orders", "keys": ["id", "a,b"]}]'),
        ("config.url", "https://example.org/a/../b"),
        ("config.streams", '[{"path": "items", "records_path": "$.data[*]"}]'),
        ("tap.executable.x", "tap-csv"),
    ],
)
def test_what_reaches_nothing_needs_no_setting(key: str, value: str) -> None:
    assert wrong(NOTHING, key, value) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("connector.class", "shop:Weather"),
        ("transforms.a.type", "python:shop.money:round"),
        ("password", "${file:/etc/headrace/db.properties:password}"),
        ("password", "${file:/etc/headrace/a/../db:password}"),
        ("password", "${dir:/run/secrets:db}"),
        ("password", "x${env:SHOP_PASSWORD}y"),
        ("connection.url", "postgresql://shop:${env:SHOP_PASSWORD}@db/shop"),
        ("path", "/data"),
        ("path", "/data/in"),
        ("path", "//data//in/"),
        ("path", "file:///data/in"),
        ("connection.url", "sqlite:////data/shop.db"),
        ("connection.url", "jdbc:sqlite:////data/shop.db?mode=ro"),
        ("value.converter.schema", "/data/schema.avsc"),
        ("path", "/data/a,b"),
        ("any.key", "/data/a, /data/b"),
        ("tap.executable", "tap-csv"),
        ("tap.executable", "/opt/taps/tap-x"),
        ("tap.config.file", "/data/tap.json"),
        ("config.files", '[{"entity": "orders", "path": "/data/orders.csv"}]'),
        ("config.path", "/data/orders.csv"),
    ],
)
def test_what_a_setting_names_may_be_reached(key: str, value: str) -> None:
    assert set(wrong(NOTHING, key, value)) == {key}
    assert wrong(SOME, key, value) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("connector.class", "shop:Other"),
        ("connector.class", "/data/shop.py"),
        ("connector.class", "os:system"),
        ("transforms.a.type", "python:os:system"),
        ("transforms.a.type", "python:shop.money:round:"),
        ("password", "${file:/etc/headrace2/db:password}"),
        ("password", "${file:/etc/headrace/../shadow:root}"),
        ("password", "${file:etc/headrace/db:password}"),
        ("password", "${dir:/run:secrets}"),
        ("password", "${env:SHOP_PASSWORD}${env:HOME}"),
        ("password", "${env:shop_password}"),
        ("any.key", "${file:/etc/shadow:root}"),
        ("path", "/data/../etc"),
        ("path", "/database"),
        ("path", "data"),
        ("path", "~/data"),
        ("path", "."),
        ("path", "file:///etc"),
        ("path", "file:///data/%2e%2e/etc"),
        ("path", "FILE:///etc/passwd"),
        ("path", "file://data/in"),
        ("any.key", "/etc/passwd"),
        ("any.key", "../etc/passwd"),
        ("table", "${topic}/../../etc/cron.d"),
        ("table", "a/.."),
        ("path", "/*"),
        ("connection.url", "sqlite:///data/shop.db"),
        ("connection.url", "jdbc:sqlite:////etc/shop.db"),
        ("connection.url", "SQLITE:////etc/shop.db"),
        ("connection.url", "sqlite:file:/etc/shop.db"),
        ("value.converter.schema", "/etc/passwd"),
        ("value.converter.descriptor", "shop.desc"),
        ("any.key", "/data/a,/etc/passwd"),
        ("any.key", "a, /etc/passwd"),
        ("path", "s3://bucket/a,/etc/passwd"),
        ("path", "/data/a,file:///etc/passwd"),
        ("path", "${env:SHOP_PASSWORD}"),
        ("tap.executable", "tap-csv2"),
        ("tap.executable", "/data/tap"),
        ("tap.executable", "/opt/taps/../taps/tap-x"),
        ("tap.executable", "${env:SHOP_PASSWORD}"),
        ("executable", "sh"),
        ("config.any", "/etc/passwd"),
        ("config.files", '[{"entity": "orders", "path": "/etc/passwd"}]'),
        ("config.files", '[{"entity": "orders", "path": "../orders.csv"}]'),
        ("config.streams", '[{"path": "/items"}]'),
        ("config.files", '{"a": {"b": ["x", "/data/a,/etc/passwd"]}}'),
        ("config.files", '{"/etc/passwd": 1}'),
        ("config.files", '"file:///etc/passwd"'),
        ("config.files", '["\\u002fetc/passwd"]'),
    ],
)
def test_nothing_beside_that(key: str, value: str) -> None:
    assert wrong(SOME, key, value), f"{key}={value} passes"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://shop:hunter2@db/shop",
        "jdbc:postgresql://shop:hunter2-${env:A}@db/shop",
        "postgresql://shop:hunter2${env:A@db",
        "https://:hunter2@example.org",
    ],
)
def test_a_password_in_a_url_is_a_secret_unless_that_is_allowed(url: str) -> None:
    (problem,) = find_passwords({"connection.url": url})
    assert problem.key == "connection.url"
    assert "hunter2" not in problem.message
    assert find_passwords({"connection.url": url, "allow.plain.secrets": "true"}) == ()


@pytest.mark.parametrize(
    "url", ["postgresql://shop:${env:A}@db", "postgresql://shop@db:5432", "https://example.org:443/a:b@c", "a:b@c", ""]
)
def test_urls_without_one(url: str) -> None:
    assert find_passwords({"connection.url": url}) == ()


def test_the_route_of_a_web_hook_is_no_file() -> None:
    config = {"connector.class": "http-source", "route": "/hooks/github", "path": "/etc"}
    assert [problem.key for problem in NOTHING.find_problems(config, ())] == ["path"]
    assert wrong(NOTHING, "route", "/hooks/github"), "of another connector nobody knows what it is"


def test_everything_is_said_at_once_and_no_secret_is_shown() -> None:
    config = {
        "connector.class": "os:system",
        "password": "hunter2-${env:HOME}",
        "path": "/etc",
        "topic": "t",
    }
    problems = NOTHING.find_problems(config, ())
    assert [problem.key for problem in problems] == ["connector.class", "password", "path"]
    assert not any("hunter2" in problem.message for problem in problems)
