"""A connector's configuration: all that is wrong at once, secrets, and how its class is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import InvalidConfig
from headrace_connect.connectors.mirror import MirrorSource
from headrace_connect.plugin import Source
from headrace_connect.runtime.config import SinkConfig, SourceConfig
from headrace_connect.runtime.configuring import configure, describe_plugin, find_config_problems
from headrace_connect.settings import Secrets

PLUGIN = '''
from dataclasses import dataclass
from headrace_connect import Secret, Sink, Source, setting, source

@dataclass(frozen=True, slots=True)
class Settings:
    """Of the source."""

    url: str
    """Where it is."""
    password: Secret | None = setting(None, key="database.password")
    """Of the user."""

class Weather(Source[Settings]):
    """Weather."""

class Attic(Sink):
    """Nothing comes back."""

@source
def once():
    """Cannot go on."""
'''


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    file = tmp_path / "weather_plugin.py"
    file.write_text(PLUGIN)
    return file


def problems(given: dict[str, str]) -> dict[str, str]:
    return {problem.key: problem.message for problem in find_config_problems(given)}


def test_a_sound_configuration(plugin: Path) -> None:
    given = {
        "name": "weather",
        "connector.class": f"{plugin}:Weather",
        "topic": "weather",
        "url": "http://x",
        "database.password": "${env:PASSWORD}",
        "tasks.max": "3",
        "errors.retry.timeout": "-1",
        "value.converter": "string",
        "transforms": "mask",
        "transforms.mask.type": "MaskField$Value",
        "transforms.mask.fields": "card",
    }
    assert problems(given) == {}
    made = configure(given, Secrets(environment={"PASSWORD": "hunter2"}))
    assert isinstance(made.config, SourceConfig)
    assert (made.config.name, made.config.tasks_max, made.config.errors_retry_timeout) == ("weather", 3, -1)
    assert (made.settings.url, made.settings.password.reveal()) == ("http://x", "hunter2")
    assert isinstance(made.make(), Source)
    assert len(made.converting().transforms.steps) == 1


def test_all_that_is_wrong_is_told_at_once(plugin: Path) -> None:
    given = {
        "name": "weather",
        "connector.class": f"{plugin}:Weather",
        "task.max": "3",
        "errors.tolerance": "some",
        "database.password": "hunter2",
        "value.converter": "jsn",
        "transforms": "mask",
        "transforms.mask.type": "MaskFeld$Value",
    }
    found = problems(given)
    assert set(found) == {
        "task.max",
        "errors.tolerance",
        "database.password",
        "url",
        "value.converter",
        "transforms.mask.type",
    }
    assert "is tasks.max meant?" in found["task.max"]
    assert "hunter2" not in str(found)
    with pytest.raises(InvalidConfig) as wrong:
        configure(given, Secrets())
    assert all(message in str(wrong.value) for message in found.values())


def test_sinks_need_topics(plugin: Path) -> None:
    given = {"name": "attic", "connector.class": f"{plugin}:Attic"}
    assert "a sink needs topics or topics.regex" in problems(given)[""]
    config = configure(given | {"topics": "a, b"}, Secrets()).config
    assert isinstance(config, SinkConfig)
    assert config.topics == ("a", "b")


def test_topics_that_cannot_be_are_told_at_their_keys(plugin: Path) -> None:
    given = {
        "name": "weather",
        "connector.class": f"{plugin}:Weather",
        "url": "http://x",
        "topic": "a/b",
        "errors.deadletterqueue.topic.name": "..",
        "offsets.storage.topic": "x" * 250,
    }
    found = problems(given)
    assert set(found) == {"topic", "errors.deadletterqueue.topic.name", "offsets.storage.topic"}
    assert "'a/b' has other characters than" in found["topic"]
    assert problems(given | dict.fromkeys(found, "${env:TOPIC}")) == {}
    sink = {"name": "attic", "connector.class": f"{plugin}:Attic"}
    assert set(problems(sink | {"topics": "orders, a b,x"})) == {"topics"}
    assert problems(sink | {"topics": "orders, x,"}) == {}


def test_a_source_that_cannot_go_on_is_refused_where_exactly_once_is_required(plugin: Path) -> None:
    given = {"name": "once", "connector.class": f"{plugin}:once", "topic": "t"}
    assert problems(given) == {}
    assert set(problems(given | {"exactly.once.support": "required"})) == {"exactly.once.support"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "connector.class is missing"),
        ({"connector.class": "flies"}, "there is no connector 'flies'"),
        ({"connector.class": "nowhere_at_all:X"}, "cannot be imported"),
        ({"connector.class": "json:loads"}, "has no source or sink 'loads'"),
        ({"connector.class": "/nowhere/x.py:X"}, "there is no file"),
    ],
)
def test_classes_that_are_not_there(given: dict[str, str], said: str) -> None:
    assert said in problems(given)["connector.class"]


@pytest.mark.parametrize(("name", "size"), [("", 0), ("x" * 81, 81), ("ü" * 14, 84)])
def test_names_have_a_bound(plugin: Path, name: str, size: int) -> None:
    given = {"name": name, "connector.class": f"{plugin}:once"}
    assert f"not {size}" in problems(given)[""]


def test_a_plugin_is_described_with_what_all_have(plugin: Path) -> None:
    keys = [one.key for one in describe_plugin(type(configure(_good(plugin), Secrets()).make()))]
    assert keys[:2] == ["name", "connector.class"]
    assert keys[-2:] == ["url", "database.password"]
    assert all(one.documentation for one in describe_plugin(type(configure(_good(plugin), Secrets()).make())))


def _good(plugin: Path) -> dict[str, str]:
    return {"name": "weather", "connector.class": f"{plugin}:Weather", "url": "http://x"}


MIRROR = {
    "name": "m",
    "connector.class": "mirror",
    "source.cluster.alias": "eu",
    "source.cluster.bootstrap.servers": "eu:9292",
    "topics": "orders",
}


@pytest.mark.parametrize("servers", ["nowhere", "eu:99999", "eu:0", "eu:9292,", " "])
def test_an_address_of_the_source_that_cannot_be_is_told_by_its_key(servers: str) -> None:
    [problem] = find_config_problems({**MIRROR, "source.cluster.bootstrap.servers": servers})
    assert problem.message.startswith("source.cluster.bootstrap.servers")
    assert "host:port" in problem.message or "port 0" in problem.message


def test_a_connector_may_have_other_defaults_of_common_keys() -> None:
    given = MIRROR
    assert configure(given, Secrets()).config.value_converter == "bytes"
    assert configure({**given, "value.converter": "string"}, Secrets()).config.value_converter == "string"
    described = {one.key: one.default for one in describe_plugin(MirrorSource)}
    assert (described["key.converter"], described["topics.missing"]) == ("bytes", "fail")
