"""A connector's configuration: what is wrong with it, and what it makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace_common.core.errors import InvalidConfig, InvalidTopic
from headrace_common.core.ids import check_topic_name
from headrace_connect.core.options import InvalidOptions
from headrace_connect.plugin import Sink, Source
from headrace_connect.runtime.aliases import translate
from headrace_connect.runtime.catalog import find_connector
from headrace_connect.runtime.config import SinkConfig, SourceConfig
from headrace_connect.runtime.converting import Converting
from headrace_connect.secrets import has_reference
from headrace_connect.settings import (
    Definition,
    Problem,
    Secrets,
    describe,
    find_problems,
    invalid,
    read_settings,
)

_CLASS = "connector.class"
_TOPIC_KEYS = ("topic", "errors.deadletterqueue.topic.name", "offsets.storage.topic")


@dataclass(frozen=True, slots=True)
class Configured:
    """A configuration that can be used."""

    plugin: type[Source[Any]] | type[Sink[Any]]
    config: SourceConfig | SinkConfig
    settings: Any
    """Of the plugin."""
    texts: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    """All of it as it was given, with references in the place of secrets."""

    @property
    def name(self) -> str:
        """Of the plugin's class, as Python has it."""
        return f"{self.plugin.__module__}.{self.plugin.__qualname__}"

    def make(self) -> Source[Any] | Sink[Any]:
        """A new instance of the connector."""
        return self.plugin(self.settings)

    def converting(self) -> Converting:
        """Converters and transforms, for one task."""
        return Converting.of(self.config.converting)


def describe_plugin(plugin: type[Source[Any]] | type[Sink[Any]]) -> tuple[Definition, ...]:
    """Its settings, and before them those that every source or sink has."""
    described = describe(_common(plugin), plugin.settings_type)
    own = plugin.defaults
    return tuple(replace(one, default=own[one.key]) if one.key in own else one for one in described)


def find_config_problems(given: Mapping[str, str]) -> tuple[Problem, ...]:
    """All that is wrong with a configuration; nothing is resolved, and nobody is asked."""
    try:
        plugin = _plugin_of(given)
    except InvalidConfig as error:
        return (Problem(_CLASS, str(error)),)
    translated, problems = translate(given)
    given = {**plugin.defaults, **translated}
    name, common = given[_CLASS], _common(plugin)
    plain = given.get("allow.plain.secrets", "").lower() == "true"
    problems += list(find_problems(given, common, plugin.settings_type, kind=name, allow_plain_secrets=plain))
    try:
        Converting.of(given)
    except InvalidOptions as error:
        problems += error.problems
    problems += _topic_problems(given, plugin)
    if given.get("exactly.once.support") == "required" and issubclass(plugin, Source) and not plugin.exactly_once:
        problems.append(
            Problem("exactly.once.support", f"exactly.once.support: {name} cannot go on exactly behind a position")
        )
    return tuple(problems)


def _topic_problems(given: Mapping[str, str], plugin: type[Source[Any]] | type[Sink[Any]]) -> list[Problem]:
    """Topics that no cluster can have; what a reference stands for is seen when the task runs."""
    names = [(key, given.get(key, "")) for key in _TOPIC_KEYS]
    if issubclass(plugin, Sink):
        names += [("topics", name.strip()) for name in given.get("topics", "").split(",")]
    problems: list[Problem] = []
    for key, name in names:
        if not name or has_reference(name):
            continue
        try:
            check_topic_name(name)
        except InvalidTopic as error:
            problems.append(Problem(key, f"{key}: {error}"))
    return problems


def configure(given: Mapping[str, str], secrets: Secrets) -> Configured:
    """
    Everything that a configuration says, with its secrets.

    Raises:
        InvalidConfig: all that is wrong, one line each; its cause is what the connector's module raised.
    """
    try:
        plugin = _plugin_of(given)
    except InvalidConfig as error:
        raise invalid([Problem(_CLASS, str(error))]) from error
    problems = find_config_problems(given)
    if problems:
        raise invalid(problems)
    texts, given = given, {**plugin.defaults, **translate(given)[0]}
    config = read_settings(_common(plugin), given, secrets)
    settings: Any = read_settings(plugin.settings_type, given, secrets)
    try:
        Converting.of(config.converting)
    except InvalidOptions as error:
        raise invalid(error.problems) from None
    return Configured(plugin, config, settings, texts)


def _plugin_of(given: Mapping[str, str]) -> type[Source[Any]] | type[Sink[Any]]:
    name = given.get(_CLASS)
    if not name:
        raise InvalidConfig(f"{_CLASS} is missing; `headrace connect plugins` lists what there is")
    return find_connector(name)


def _common(plugin: type[Source[Any]] | type[Sink[Any]]) -> type[SourceConfig] | type[SinkConfig]:
    return SourceConfig if issubclass(plugin, Source) else SinkConfig
