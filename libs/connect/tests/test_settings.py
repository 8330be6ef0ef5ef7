"""Settings of connectors: what is known of each, what is said of wrong ones, and that secrets stay secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from headrace.errors import InvalidConfig
from headrace_connect.settings import (
    Importance,
    Secret,
    Secrets,
    ValueType,
    describe,
    find_problems,
    looks_secret,
    read_settings,
    setting,
)


@dataclass(frozen=True, slots=True)
class Shop:
    """Settings with one of each type."""

    url: str
    """Where to ask,
    every ``poll_s``."""
    password: Secret = setting(key="database.password")
    """Of the user."""
    poll_s: float = setting(60.0, low=1, high=3_600)
    """Seconds between two questions."""
    rows: int = setting(100, low=1, high=1_000)
    """At once."""
    tables: tuple[str, ...] = ()
    """All, if there are none."""
    mode: Literal["insert", "upsert"] = setting("insert", importance=Importance.LOW, group="Writes")
    """How to write."""
    limit: int | None = None
    """None: there is none."""
    wide: bool = False
    """Whether to make columns."""
    options: Mapping[str, str] = setting(prefix="driver.")
    """Of the driver."""

    def __post_init__(self) -> None:
        if self.wide and self.mode == "upsert":
            raise ValueError(f"wide and mode=upsert exclude each other at {self.url}")


GOOD = {"url": "http://shop", "database.password": "${env:PASSWORD}"}


def secrets(**environment: str) -> Secrets:
    return Secrets(environment=environment)


def messages(given: Mapping[str, str], **options: bool) -> dict[str, str]:
    return {problem.key: problem.message for problem in find_problems(given, Shop, kind="shop", **options)}


def test_what_is_known_of_each_setting() -> None:
    by_key = {definition.key: definition for definition in describe(Shop)}
    assert list(by_key) == [
        "url",
        "database.password",
        "poll.s",
        "rows",
        "tables",
        "mode",
        "limit",
        "wide",
        "driver.",
    ]
    url, poll, mode = by_key["url"], by_key["poll.s"], by_key["mode"]
    assert (url.type, url.required, url.default, url.importance) == (ValueType.STRING, True, None, Importance.HIGH)
    assert url.documentation == "Where to ask, every ``poll_s``."
    assert poll.documentation == "Seconds between two questions. Takes 1 to 3600."
    assert (poll.type, poll.default, poll.importance) == (ValueType.DOUBLE, "60.0", Importance.MEDIUM)
    assert (mode.choices, mode.importance, mode.group, mode.order) == (("insert", "upsert"), "LOW", "Writes", 1)
    types = [by_key[key].type for key in ("database.password", "rows", "tables", "limit", "wide")]
    assert types == ["PASSWORD", "INT", "LIST", "LONG", "BOOLEAN"]
    assert by_key["driver."].family
    assert not by_key["driver."].required


def test_settings_are_read_from_texts() -> None:
    given = GOOD | {"poll.s": "2.5", "tables": "a, b", "limit": "7", "wide": "true", "driver.a.b": "c", "other": "x"}
    shop = read_settings(Shop, given, secrets(PASSWORD="hunter2"))
    assert shop == Shop(
        url="http://shop",
        password=Secret("hunter2"),
        poll_s=2.5,
        tables=("a", "b"),
        limit=7,
        wide=True,
        options={"a.b": "c"},
    )
    assert shop.password.reveal() == "hunter2"
    assert "hunter2" not in f"{shop} {shop!r} {shop.password}"


def test_all_that_is_wrong_is_named_at_its_key() -> None:
    given = {"poll.s": "0.5", "rows": "many", "mode": "replace", "tabels": "a", "driver.x": "y", "wide": "maybe"}
    assert messages(given) == {
        "tabels": "tabels is not a setting of shop; is tables meant?",
        "url": "url is missing; it takes a text",
        "database.password": "database.password is missing; it takes a text",
        "poll.s": "poll.s: it takes 1 to 3600, not 0.5",
        "rows": "rows: it takes a whole number, not 'many'",
        "mode": "mode: it takes insert, upsert, not 'replace'",
        "wide": "wide: it takes true or false, not 'maybe'",
    }


def test_good_settings_have_no_problem_and_nothing_is_resolved_for_it() -> None:
    assert messages(GOOD) == {}


def test_what_lies_between_keys_has_no_key() -> None:
    given = GOOD | {"database.password": "x", "wide": "true", "mode": "upsert"}
    assert messages(given, allow_plain_secrets=True) == {"": "wide and mode=upsert exclude each other at http://shop"}


@pytest.mark.parametrize("key", ["database.password", "driver.ssl.token", "driver.api.key"])
def test_plain_secrets_are_refused_unless_they_are_allowed(key: str) -> None:
    given = GOOD | {key: "hunter2"}
    assert list(messages(given)) == [key]
    assert "hunter2" not in messages(given)[key]
    assert messages(given, allow_plain_secrets=True) == {}


@pytest.mark.parametrize("key", ["primary.key", "tokens.max", "key.converter", "secrets.dir", "passwords"])
def test_names_that_are_no_secrets(key: str) -> None:
    assert not looks_secret(key)


def test_what_a_reference_gives_is_shown_in_no_message() -> None:
    given = GOOD | {"rows": "${env:ROWS}", "url": "${env:URL}", "wide": "true", "mode": "upsert"}
    environment = secrets(ROWS="hunter2", URL="http://hunter3", PASSWORD="hunter4")
    with pytest.raises(InvalidConfig) as wrong:
        read_settings(Shop, given, environment)
    assert "rows: what ${env:ROWS} gives does not fit; it takes int, 1 to 1000" in str(wrong.value)
    assert "hunter" not in str(wrong.value)
    with pytest.raises(InvalidConfig) as between:
        read_settings(Shop, given | {"rows": "5"}, environment)
    assert "exclude each other at ${env:URL}" in str(between.value)
    assert "hunter" not in str(between.value)


def test_secrets_come_from_files_directories_and_the_environment(tmp_path: Path) -> None:
    properties = tmp_path / "db.properties"
    properties.write_text("# password=no\nuser = me\npassword = a=b\n")
    (tmp_path / "token").write_text("t0ken\n")
    resolve = secrets(HOST="db").resolve
    assert resolve(f"${{file:{properties}:password}}") == "a=b"
    assert resolve(f"${{dir:{tmp_path}:token}}") == "t0ken"
    assert resolve("tcp://${env:HOST}:5432/${env:HOST}") == "tcp://db:5432/db"
    assert resolve("costs $5 {or} so") == "costs $5 {or} so"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${env:NOWHERE}", "has no such variable"),
        ("${vault:a:b}", "there is no 'vault'"),
        ("${file:/etc/x}", "is not complete"),
        ("${env:}", "is not complete"),
        ("${file:/nowhere/at/all:key}", "cannot be read"),
        ("${dir:/etc:../passwd}", "without a path"),
    ],
)
def test_wrong_references_say_what_is_wrong_with_them(text: str, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        secrets().resolve(text)


def test_a_file_is_read_only_where_that_is_allowed(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.write_text("key=hunter2\n")
    (inside / "link").symlink_to(outside)
    allowed = Secrets(directories=[inside], names=["HOME"], environment={"PATH": "/bin"})
    for reference in (f"${{file:{outside}:key}}", f"${{file:{inside}/link:key}}", f"${{file:{inside}/../out:key}}"):
        with pytest.raises(InvalidConfig, match="may not be read here"):
            allowed.resolve(reference)
    with pytest.raises(InvalidConfig, match=r"env.allowed"):
        allowed.resolve("${env:PATH}")


def test_what_a_reference_gave_is_hidden_in_each_form() -> None:
    secrets = Secrets(environment={"A": "p@ss word", "B": "p@ss", "C": "abc", "D": 'say "so"'})
    assert secrets.hide("p@ss word") == "p@ss word", "nobody has asked for it"
    for name in "ABCD":
        secrets.resolve(f"x${{env:{name}}}")
    assert secrets.hide("p@ss word and p@ss, p%40ss%20word") == "${env:A} and ${env:B}, ${env:A}"
    assert secrets.hide("?key=p%40ss+word") == "?key=${env:A}"
    assert secrets.hide('{"a": "say \\"so\\""}') == '{"a": "${env:D}"}'
    assert secrets.hide("abc") == "abc", "what is so short stands in any text"
