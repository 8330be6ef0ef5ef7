"""The membership in one work group: what ``_conversing`` does, and what both twins ask. See ``headrace.WorkGroup``."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headrace._core.group_messages import Polled, Subscribed
from headrace._core.phases import Phase
from headrace._core.work_membership import WorkMembership
from headrace._descriptors import needing_descriptors
from headrace._setting_names import Servers, split
from headrace._transport.port import Transport
from headrace.aio._conversing import Conversing
from headrace.aio._coordinators import CoordinatorLink
from headrace.aio._work_wire import WorkWire, transactional_id
from headrace.errors import InvalidConfig, RebalanceInProgress, UnknownMemberId
from headrace.group_types import ConsumerGroupMetadata
from headrace.settings import read_settings
from headrace.work_settings import WorkSettings
from headrace.work_types import Declaration, WorkChange, WorkItem, declare
from headrace_common.runtime.clock import Clock, SystemClock
from headrace_common.runtime.entropy import new_uuid

GROUP_ID_LENGTH_MAX = 249


class Work(Conversing[WorkMembership]):
    """
    See the module's text. All but ``close`` may be called by any thread.

    Args:
        transport: used on the loop thread only; closed here.
        notify: called, on any thread, when there is something to poll.
    """

    def __init__(
        self,
        name: str,
        declaration: Declaration,
        settings: WorkSettings,
        transport: Transport,
        clock: Clock,
        notify: Callable[[], None],
    ) -> None:
        self.name = name
        self.settings = settings
        process_id = settings.process_id or f"{socket.gethostname()}-{os.getpid()}-{new_uuid()}"
        core = WorkMembership(settings.group(name), new_uuid)
        self._work_wire = WorkWire(name, settings, declaration, process_id)
        link = CoordinatorLink(lambda: transport.find_coordinator(name), settings, clock)
        super().__init__("work", core, self._work_wire, link, transport, clock, notify)

    def start(self) -> None:
        """Join."""
        self.tell(Subscribed((), None, self._clock.monotonic_ms()))

    def poll(self) -> WorkChange | None:
        """
        What has changed since the last poll; None: nothing.

        Raises:
            HeadraceError: why it cannot be a member, or has not been one for ``default_api_timeout_ms``. What it did is
                lost by then; nothing of it is told once more. The poll after a refusal tries anew.
        """
        if self.core.refusal_told:
            self._changed()
        with self.lock:
            change = self.core.poll()
            self.news = False
        if change is None:
            failure = self.take_failure(self._clock.monotonic_ms())
            if failure is not None:
                raise failure
        self._changed()
        return change

    def declare(self, declaration: Declaration) -> None:
        """What there is to do from now on, with the next heartbeat, which leaves at once."""
        with self.lock:
            self._work_wire.declare(declaration)
            self.core.declare()
        self._changed()

    def give_up(self, items: Iterable[str]) -> None:
        """Nothing runs of these any more."""
        with self.lock:
            self.core.give_up(items)
        self._changed()

    def report(self, lags: Mapping[str, int] | None, refused: Mapping[str, int], ended: Iterable[str]) -> None:
        """How far this member is, with the next heartbeat, which leaves at once."""
        with self.lock:
            self.core.report(lags, refused, ended)
        self._changed()

    def _changed(self) -> None:
        self.tell(Polled(self._clock.monotonic_ms()))

    @property
    def suspended(self) -> bool:
        """Whether others may have its items by now."""
        return self.core.suspended(self._clock.monotonic_ms())

    def metadata(self) -> ConsumerGroupMetadata:
        """
        Who commits now.

        Raises:
            UnknownMemberId: it was a member, and is out.
            RebalanceInProgress: it is no member yet.
        """
        with self.lock:
            core = self.core
            if core.failure is not None:
                raise core.failure
            if core.lost or core.phase in (Phase.OUT, Phase.LEAVING, Phase.LEFT):
                raise UnknownMemberId(
                    f"this member is out of group {self.name!r}, and others have its items: give them up"
                )
            known = core.identity
        if known is None:
            raise RebalanceInProgress(f"group {self.name!r} has not taken this member in yet; poll until it has")
        return ConsumerGroupMetadata(self.name, known.member_id, known.generation, self.settings.group_instance_id)

    @property
    def transactional_id(self) -> str | None:
        """Of this membership's producer; another one after each join."""
        return transactional_id(self.settings, self.core.member_id)


def open_work(
    name: str,
    items: Iterable[WorkItem | str] | Declaration,
    bootstrap_servers: Servers,
    given: Mapping[str, Any],
    transport: Transport | None,
    notify: Callable[[], None],
) -> Work:
    """
    Check what the application gave; connections are opened when it joins.

    Raises:
        InvalidConfig: all settings that are wrong.
    """
    servers, named = split(bootstrap_servers, given)
    settings = read_settings(WorkSettings, named)
    if not isinstance(name, str) or not 1 <= len(name) <= GROUP_ID_LENGTH_MAX:
        raise InvalidConfig(f"a group's name is a text of 1 to {GROUP_ID_LENGTH_MAX} characters, not {name!r:.300}")
    declaration = declaration_of(items)
    if transport is None:
        with needing_descriptors():
            from headrace._transport.grpc import GrpcTransport

            transport = GrpcTransport(settings.find(servers), call_timeout_ms=settings.request_timeout_ms)
    return Work(name, declaration, settings, transport, SystemClock(), notify)


def declaration_of(items: Iterable[WorkItem | str] | Declaration) -> Declaration:
    """
    What the application says that there is to do.

    Raises:
        InvalidConfig: what is wrong, all of it.
    """
    return items if isinstance(items, Declaration) else declare(items)
