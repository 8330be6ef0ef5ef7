"""What a host answers to questions about configurations and plugins; values are what JSON can hold."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from headrace.records import TopicPartition
from headrace_common.core.errors import InvalidConfig
from headrace_connect.core.host_messages import (
    Describe,
    Kind,
    ListPlugins,
    Preview,
    Question,
    Rewind,
    Settle,
    Snapshot,
    Validate,
    Verify,
    VerifyProgress,
)
from headrace_connect.core.options import Problem
from headrace_connect.core.progress import Progress
from headrace_connect.plugin import Sink, Source
from headrace_connect.runtime.catalog import find_connector, list_connectors
from headrace_connect.runtime.configuring import configure, describe_plugin, find_config_problems
from headrace_connect.runtime.host_work import Given
from headrace_connect.runtime.looking import ask_snapshot, check_connector, preview, preview_sink
from headrace_connect.runtime.rewinding import rewind
from headrace_connect.runtime.settling import settle_left
from headrace_connect.runtime.verifying import verify
from headrace_connect.settings import Secrets

VALUE_CHARS_MAX: Final = 16_000
"""Of a value of a preview; what is longer is cut."""


async def answer(question: Question, given: Given) -> Mapping[str, Any]:
    """
    What ``Answer.result`` has.

    Raises:
        Exception: of the connector, or ``InvalidConfig``.
    """
    match question:
        case Validate():
            return await _validate(question, given.secrets)
        case Preview():
            return {"records": [_plain(row) for row in await _preview(question, given)]}
        case Settle(_, config):
            process = given.process
            configured = configure(config, given.secrets)
            return {"settled": await settle_left(process.prepared, process.config.group_id, configured, 0)}
        case Rewind(_, config, positions, forget_others):
            wanted = {TopicPartition(one.topic, one.partition): one.position for one in positions}
            configured = configure(config, given.secrets)
            return {"changed": await rewind(configured, given.process, wanted, forget_others=forget_others)}
        case Verify():
            return await _verify(question, given)
        case Snapshot(_, config, tables):
            return {"tables": await ask_snapshot(configure(config, given.secrets), tables)}
        case Describe(_, plugin):
            return _described(plugin)
        case ListPlugins():
            return {"plugins": [_listed(one.name, one.where) for one in list_connectors()]}


async def _validate(question: Validate, secrets: Secrets) -> Mapping[str, Any]:
    problems = list(find_config_problems(question.config))
    described: Mapping[str, Any] = {"kind": "", "definitions": []}
    try:
        described = _described(question.config.get("connector.class", ""))
    except InvalidConfig:
        assert problems, "what cannot be found is a problem"
    if not problems and not question.offline:
        try:
            said = await check_connector(configure(question.config, secrets))
        except Exception as error:  # noqa: BLE001 - of a driver, say: it is the answer
            said = [f"{type(error).__name__}: {error}"]
        problems = [Problem("", text) for text in said]
    return {**described, "problems": [asdict(problem) for problem in problems]}


async def _preview(question: Preview, given: Given) -> Sequence[Mapping[str, Any]]:
    configured = configure(question.config, given.secrets)
    if issubclass(configured.plugin, Source):
        return await preview(configured, question.records_max)
    return await preview_sink(configured, given.process, question.records_max)


async def _verify(question: Verify, given: Given) -> Mapping[str, Any]:
    def tell(progress: Progress) -> None:
        given.report(VerifyProgress(question.id, progress))

    configured = configure(question.config, given.secrets)
    topics, records_max = question.topics, question.records_max
    return await verify(configured, given.process, topics, records_max=records_max, repair=question.repair, tell=tell)


def _described(name: str) -> Mapping[str, Any]:
    plugin = find_connector(name)
    definitions = [asdict(definition) for definition in describe_plugin(plugin)]
    return {"class": name, "kind": _kind(plugin).value, "version": plugin.version, "definitions": definitions}


def _listed(name: str, where: str) -> Mapping[str, str]:
    """A plugin; without its kind and version where it cannot be imported."""
    try:
        plugin = find_connector(name)
    except InvalidConfig as error:
        return {"name": name, "where": where, "kind": "", "version": "", "problem": str(error)}
    return {"name": name, "where": where, "kind": _kind(plugin).value, "version": plugin.version, "problem": ""}


def _kind(plugin: type[Source[Any]] | type[Sink[Any]]) -> Kind:
    return Kind.SINK if issubclass(plugin, Sink) else Kind.SOURCE


def _plain(value: Any) -> Any:
    """As JSON can hold it: bytes as text where they are, else as base64."""
    match value:
        case None | bool() | float():
            return value
        case int():
            return value if -(2**63) <= value < 2**63 else str(value)
        case str():
            return value[:VALUE_CHARS_MAX].encode(errors="replace").decode()
        case bytes():
            try:
                return _plain(value.decode())
            except UnicodeDecodeError:
                return {"base64": b64encode(value[:VALUE_CHARS_MAX]).decode()}
        case Mapping():
            return {str(_plain(str(key))): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
    return _plain(str(value))
