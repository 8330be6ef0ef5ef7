"""
Asks hosts what is wrong with a configuration and what plugins there are, within what REST may reach.

A host is a process of its own for each question, so few are asked at a time; more wait, and beyond that are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from headrace_common.core.errors import Overloaded
from headrace_connect.core.options import Problem
from headrace_connect.settings import Definition
from headrace_connect_worker.core.policy import Policy, find_passwords
from headrace_connect_worker.core.refusals import BadCommand
from headrace_connect_worker.ports import Config, Hosts, Plugin

ASKED_MAX: Final = 2
"""Hosts that answer questions at one time."""
WAITING_MAX: Final = 64
_CLASS: Final = "connector.class"


class Checking:
    """Questions to hosts."""

    def __init__(self, hosts: Hosts, policy: Policy) -> None:
        self._hosts = hosts
        self._policy = policy
        self._free = asyncio.Semaphore(ASKED_MAX)
        self._waiting = 0

    async def check(self, config: Config) -> tuple[str, Sequence[Problem]]:
        """
        ``source`` or ``sink``, and all that is wrong with a configuration as it is written; the other system is not
        asked.

        Raises:
            HostUnavailable: nobody could look at it.
            Overloaded: too many questions at one time.
        """
        refused = await self._beyond(config)
        if refused:
            return "", refused
        async with self._turn():
            found = await self._hosts.validate(config, ask=False)
        return found.kind, (*found.problems, *find_passwords(config))

    async def look(self, config: Config) -> tuple[Sequence[Definition], Sequence[Problem]]:
        """
        The settings that there are, and all that is wrong, outside too. What may not be reached is not opened.

        Raises:
            InvalidConfig: there is no such plugin.
            HostUnavailable, Overloaded: as ``check``.
        """
        refused = await self._beyond(config)
        async with self._turn():
            if not refused:
                found = await self._hosts.validate(config)
                return found.definitions, (*found.problems, *find_passwords(config))
            if any(problem.key == _CLASS for problem in refused):
                return (), refused
            return await self._hosts.describe(config[_CLASS]), refused

    async def describe(self, plugin: str) -> Sequence[Definition]:
        """
        The settings of a connector.

        Raises:
            InvalidConfig: there is none of this name.
            HostUnavailable, Overloaded: as ``check``.
        """
        await self.ensure_within({_CLASS: plugin})
        async with self._turn():
            return await self._hosts.describe(plugin)

    async def plugins(self) -> Sequence[Plugin]:
        """The connectors that have a name."""
        async with self._turn():
            return await self._hosts.plugins()

    async def preview(self, config: Config, records_max: int) -> Sequence[Mapping[str, Any]]:
        """
        The first records of a source.

        Raises:
            BadCommand: the configuration may not reach what it names.
            HostUnavailable, Overloaded: as ``check``.
        """
        await self.ensure_within(config)
        async with self._turn():
            return await self._hosts.preview(config, records_max)

    async def snapshot(self, config: Config, tables: Sequence[str]) -> Sequence[str]:
        """
        Have tables of a source be read again.

        Raises:
            BadCommand: as ``preview``.
            InvalidConfig: it cannot do it, or a table is none of its.
            HostUnavailable, Overloaded: as ``check``.
        """
        await self.ensure_within(config)
        async with self._turn():
            return await self._hosts.snapshot(config, tables)

    async def ensure_within(self, config: Config) -> None:
        """
        Raises:
            BadCommand: the configuration may not reach what it names.
            HostUnavailable, Overloaded: as ``check``.
        """
        refused = await self._beyond(config)
        if refused:
            raise BadCommand("\n".join(problem.message for problem in refused))

    async def _beyond(self, config: Config) -> Sequence[Problem]:
        """What it names and may not reach. Plugins are asked for only where a class may be one of theirs."""
        refused = self._policy.find_problems(config, ())
        if not any(problem.key == _CLASS for problem in refused):
            return refused
        return self._policy.find_problems(config, {plugin.where for plugin in await self.plugins()})

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        if self._waiting >= WAITING_MAX:
            raise Overloaded(f"{self._waiting} questions wait for hosts; ask again in a moment")
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._free.release()
