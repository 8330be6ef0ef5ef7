"""
Asks about plugins and configurations: each question has a host process of its own, which ends. ``engine.checking``
bounds how many there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from headrace.records import TopicPartition
from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.clock import Clock, limit_ms
from headrace_common.runtime.tasks import TaskRunner, first_of
from headrace_connect.core import host_messages as messages
from headrace_connect.core.errors import Fault
from headrace_connect.core.host_messages import Question, Report
from headrace_connect.core.options import Problem
from headrace_connect.core.progress import Progress
from headrace_connect.settings import Definition, Importance, ValueType
from headrace_connect_worker.adapters.environments import Environment, Environments
from headrace_connect_worker.adapters.host_process import HostProcess, HostSettings
from headrace_connect_worker.adapters.host_starts import HostStarts
from headrace_connect_worker.config import HostLimits
from headrace_connect_worker.ports import Config, HostUnavailable, NotAnswered, Plugin, Validation

PLUGINS_KEPT_MS: Final = 60_000.0
_ID: Final = 1


class PluginQuestions:
    """Of one worker."""

    def __init__(
        self, settings: HostSettings, limits: HostLimits, environments: Environments, starts: HostStarts, clock: Clock
    ) -> None:
        self._settings = settings
        self._limits = limits
        self._environments = environments
        self._starts = starts
        self._clock = clock
        self._plugins: Sequence[Plugin] = ()
        self._plugins_until_ms = 0.0

    async def validate(self, config: Config, *, ask: bool) -> Validation:
        """See ``Hosts``."""
        name = config.get("connector.class", "")
        result = await self._ask(self._environments.find(name), messages.Validate(_ID, config, offline=not ask))
        problems = tuple(Problem(one["key"], one["message"]) for one in result["problems"])
        return Validation(name, result["kind"], _definitions(result), problems)

    async def describe(self, plugin: str) -> tuple[Definition, ...]:
        """See ``Hosts``."""
        return _definitions(await self._ask(self._environments.find(plugin), messages.Describe(_ID, plugin)))

    async def plugins(self) -> Sequence[Plugin]:
        """See ``Hosts``. Those of an environment go behind those of the worker; asked again after a minute."""
        if self._clock.monotonic_ms() >= self._plugins_until_ms:
            found: dict[str, Plugin] = {}
            for environment in self._environments.all():
                for one in (await self._ask(environment, messages.ListPlugins(_ID)))["plugins"]:
                    found.setdefault(one["name"], Plugin(one["name"], one["where"], one["kind"], one["version"]))
            self._plugins = sorted(found.values(), key=lambda plugin: plugin.name)
            self._plugins_until_ms = self._clock.monotonic_ms() + PLUGINS_KEPT_MS
        return self._plugins

    async def preview(self, config: Config, records_max: int) -> Sequence[Mapping[str, Any]]:
        """
        See ``Hosts``.

        Raises:
            InvalidConfig: the configuration cannot be used.
        """
        environment = self._environments.find(config.get("connector.class", ""))
        records: Sequence[Mapping[str, Any]] = (
            await self._ask(environment, messages.Preview(_ID, config, records_max))
        )["records"]
        return records

    async def settle(self, config: Config) -> int:
        """See ``Hosts``."""
        environment = self._environments.find(config.get("connector.class", ""))
        settled: int = (await self._ask(environment, messages.Settle(_ID, config)))["settled"]
        return settled

    async def rewind(
        self, config: Config, positions: Mapping[TopicPartition, int | None], *, forget_others: bool
    ) -> int:
        """See ``Hosts``."""
        forms = tuple(messages.PositionForm(at.topic, at.partition, position) for at, position in positions.items())
        environment = self._environments.find(config.get("connector.class", ""))
        changed: int = (await self._ask(environment, messages.Rewind(_ID, config, forms, forget_others)))["changed"]
        return changed

    async def verify(
        self,
        config: Config,
        topics: Sequence[str],
        records_max: int,
        *,
        repair: bool,
        tell: Callable[[Progress], None],
    ) -> Mapping[str, Any]:
        """See ``Hosts``."""

        def on_report(report: Report) -> None:
            if isinstance(report, messages.VerifyProgress):
                tell(report.progress)

        environment = self._environments.find(config.get("connector.class", ""))
        question = messages.Verify(_ID, config, tuple(topics), records_max, repair)
        return await self._ask(environment, question, self._limits.verify_ms_max, on_report)

    async def snapshot(self, config: Config, tables: Sequence[str]) -> Sequence[str]:
        """See ``Hosts``."""
        environment = self._environments.find(config.get("connector.class", ""))
        named: Sequence[str] = (await self._ask(environment, messages.Snapshot(_ID, config, tuple(tables))))["tables"]
        return named

    async def _ask(
        self,
        environment: Environment,
        question: Question,
        ms_max: float | None = None,
        on_other: Callable[[Report], None] = lambda _: None,
    ) -> Mapping[str, Any]:
        """
        Args:
            ms_max: how long the host may take for its answer; None: ``plugin_ms_max``.
            on_other: called with reports before the answer.

        Raises:
            InvalidConfig: what was asked about is wrong.
            NotAnswered: what is outside does not let the connector.
            HostUnavailable: there is no answer.
        """
        answers: list[Report] = []
        answered = asyncio.Event()

        def on_report(report: Report) -> None:
            if isinstance(report, messages.Answer | messages.NoAnswer):
                answers.append(report)
                answered.set()
            else:
                on_other(report)

        ms_max = self._limits.plugin_ms_max if ms_max is None else ms_max
        async with TaskRunner() as runner:
            start = partial(self._starts.start, environment)
            host = HostProcess("a question", start, self._settings, self._clock, on_report)
            running = runner.start(host.run(), name="host of a question")
            try:
                await host.opened()
                host.send(question)
                async with limit_ms(ms_max):
                    await first_of(answered.wait(), asyncio.wait([running]))
            except TimeoutError:
                host.kill(f"it did not answer within {ms_max} ms")
            finally:
                host.kill("it is not needed any more")
                await asyncio.wait([running])  # also where nobody waits for its answer: it does nothing any more
        if not answers:
            raise HostUnavailable(host.trace)
        return _result(answers[0])


def _result(report: Report) -> Mapping[str, Any]:
    match report:
        case messages.Answer(_, result):
            return result
        case messages.NoAnswer(_, Fault.CONFIG | Fault.DATA, reason):
            raise InvalidConfig(reason)
        case messages.NoAnswer(_, Fault.WORLD, reason):
            raise NotAnswered(reason)
        case messages.NoAnswer(_, _, reason, trace):
            raise HostUnavailable(f"{reason}\n{trace}")
    raise AssertionError("only answers were kept")


def _definitions(result: Mapping[str, Any]) -> tuple[Definition, ...]:
    return tuple(
        Definition(
            **{
                **one,
                "type": ValueType(one["type"]),
                "importance": Importance(one["importance"]),
                "choices": tuple(one["choices"]),
            }
        )
        for one in result["definitions"]
    )
