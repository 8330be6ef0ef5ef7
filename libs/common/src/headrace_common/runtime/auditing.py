"""
Decides what the gates of a process tell its audit, and counts what they refuse. Who calls is in the caller's context;
nothing in here waits but ``doing``, around what changes something.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from opentelemetry.metrics import Meter

from headrace_common.core.access.api_keys import PREFIX, parse_key
from headrace_common.core.access.authentication import Shown
from headrace_common.core.access.client_certificates import ClientCertificate
from headrace_common.core.access.grants import Effect
from headrace_common.core.access.principal import ANONYMOUS, PrincipalType
from headrace_common.core.access.resources import Operation, ResourceType
from headrace_common.core.access.state import Caller
from headrace_common.core.audit.announcing import counted, registration
from headrace_common.core.audit.chain import Start
from headrace_common.core.audit.events import Actor, Change, Decision, Event, Method, Resource, actor_of, change_of
from headrace_common.core.audit.kinds import MINUTE_MS, TREATMENTS, Kind
from headrace_common.core.audit.operations import WRITTEN_OF
from headrace_common.core.errors import (
    AuditUnavailable,
    CredentialsExpired,
    CredentialsRevoked,
    Denied,
    ErrorCode,
    HeadraceError,
)
from headrace_common.core.image import NodeKey, Role
from headrace_common.core.secret import Secret
from headrace_common.rpc.audit_requests import Item, items_of, only_asks, statuses_of
from headrace_common.runtime.admission import host_of_peer
from headrace_common.runtime.audit import Audit, Delivery, StartKey, open_audit
from headrace_common.runtime.audit_settings import AuditConfig
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.tasks import TaskRunner

CHANGES: Final[Mapping[str, Kind]] = {
    operation: kind for operation, kind in WRITTEN_OF.items() if kind is not None and TREATMENTS[kind].before_answer
}
"""Operations whose answer waits for the audit."""
WRITTEN_BY_ENGINES: Final = frozenset({"Admin/ResetOffsets", "Admin/DecidePrepared"})
"""Of these, those that the admin service carries out itself, for gRPC and REST: its engines write them."""

Named: TypeAlias = tuple[ResourceType, str]
Values: TypeAlias = "Mapping[str, str | Secret]"
RecordTeller: TypeAlias = Callable[[str], None]
"""Takes the name of a topic."""

_changes: ContextVar[dict[Named, Change] | None] = ContextVar("headrace_changes", default=None)


def tell_change(type: ResourceType, name: str, before: Values, after: Values) -> None:
    """
    Say what a call has changed, for its event: whoever changes something knows how it was. Values that hold secrets are
    cut by their names, and where they are a ``Secret``. Nothing happens where nothing is written.
    """
    told = _changes.get()
    if told is not None:
        told[type, name] = change_of(before, after)


@dataclass(slots=True)
class Doing:
    """A call that changes something, while it is carried out."""

    count: int
    """Of its items."""
    statuses: Sequence[ErrorCode] = ()
    """How each of its items ended, if it has said so."""
    changes: dict[Named, Change] = field(default_factory=dict)

    def answered(self, answer: Any) -> None:
        """Read from the answer how each item ended."""
        self.statuses = statuses_of(answer, self.count)


class Auditing:
    """One for a process; ``audit`` is set once it is open."""

    def __init__(self, clock: Clock) -> None:
        self.audit: Audit | None = None
        self._clock = clock
        self._counts: dict[Start, int] = {}
        """Events of nodes, by their newest start, as they say."""
        self._counts_told: dict[Start, int] = {}
        self._counts_due_ms = 0.0
        self._breakglass = False
        self._failed: Any = None
        self._denied: Any = None
        self._ended: Any = None
        self.generation: Callable[[], int] = lambda: 0
        """Of the rows of access that this process decides by; called from the thread of metrics."""

    @asynccontextmanager
    async def opened(
        self, config: AuditConfig, key: NodeKey, tasks: TaskRunner, meter: Meter, delivery: Delivery | None = None
    ) -> AsyncIterator[None]:
        """Count, and have an audit as ``config`` says, until the block ends; see ``open_audit``."""
        self._measure(meter)
        async with open_audit(config, key, self._clock, tasks, delivery) as audit:
            self.audit = audit
            try:
                yield
            finally:
                self.audit = None

    @property
    def start(self) -> StartKey | None:
        """This start, for the node's registration; None: it writes no audit."""
        return None if self.audit is None else self.audit.start

    @property
    def standing(self) -> tuple[str, int]:
        """The id of this start, and how many events it has; empty: it writes no audit."""
        return ("", 0) if self.audit is None else (self.audit.start.id, self.audit.events)

    def _measure(self, meter: Meter) -> None:
        self._failed = meter.create_counter(
            "headrace_auth_failures", description="Calls without a valid credential, by what they showed"
        )
        self._denied = meter.create_counter(
            "headrace_denied", description="Things that callers asked for and may not do, by service and operation"
        )
        self._ended = meter.create_counter(
            "headrace_sessions_ended", description="Streams that were ended since their credential was, by why"
        )
        meter.create_observable_gauge(
            "headrace_access_generation",
            callbacks=[self._observe_generation],
            description="Of the rules, roles, keys and users that this process decides by; the same at all nodes",
        )
        meter.create_observable_counter(
            "headrace_audit_dropped",
            callbacks=[self._observe_dropped],
            description="Events of the audit that had no room, by kind",
        )
        meter.create_observable_gauge(
            "headrace_audit_queued",
            callbacks=[self._observe_queued],
            description="Lines of the audit that are not on disk yet",
        )
        meter.create_observable_counter(
            "headrace_audit_write_failures",
            callbacks=[self._observe_failures],
            description="Writes of the audit that failed; changes are refused meanwhile",
        )

    def failed(
        self,
        error: HeadraceError,
        bearer: str | None,
        host: str,
        rpc: str,
        certificate: ClientCertificate | None = None,
    ) -> None:
        """A call was refused because of its credential, or for want of one."""
        method, credential = _claimed(bearer)
        if certificate is not None and bearer is None:
            method, credential = Method.CERTIFICATE, certificate.fingerprint
        self._tell_failed(error, method, credential, host, rpc)

    def _tell_failed(self, error: HeadraceError, method: Method, credential: str, host: str, rpc: str) -> None:
        if self._failed is not None:
            self._failed.add(1, {"method": method.value})
        if self.audit is not None:
            actor = Actor(str(ANONYMOUS), method, credential)
            self.audit.note(self._event(Kind.AUTHENTICATION_FAILED, actor, host, rpc, status=error.code))

    def login_failed(self, error: HeadraceError, host: str, rpc: str) -> None:
        """Somebody has not proven to know a password."""
        self._tell_failed(error, Method.PASSWORD, "", host, rpc)

    def logged_in(self, user: str, host: str, rpc: str) -> None:
        """Somebody has."""
        if self.audit is not None:
            actor = Actor(f"{PrincipalType.USER.value}:{user}", Method.PASSWORD)
            self.audit.note(self._event(Kind.SESSION_BEGUN, actor, host, rpc))

    def ended(self, error: type[HeadraceError]) -> None:
        """A stream was ended by an error of this kind."""
        if self._ended is not None:
            causes: dict[type[HeadraceError], str] = {CredentialsExpired: "expired", CredentialsRevoked: "revoked"}
            self._ended.add(1, {"cause": causes.get(error, "refused")})

    def breakglass(self, principal: str, *, is_open: bool) -> None:
        """What somebody on a controller's host does past all rules: told when it is seen to begin or to end."""
        if is_open is self._breakglass or self.audit is None:
            return
        self._breakglass = is_open
        change = change_of({"open": str(not is_open)}, {"open": str(is_open)})
        event = self._event(Kind.ACCESS_CHANGED, Actor(principal, Method.NOTHING), "", "breakglass")
        with suppress(AuditUnavailable):  # it is done, whether or not there is room
            self.audit.note(replace(event, change=change))

    def began(self, shown: Shown, host: str, rpc: str) -> None:
        """Somebody was let in who was not known; ``host`` is empty while that is not read yet."""
        if self.audit is not None and host and shown.caller.principal != ANONYMOUS and shown.node is None:
            self.audit.note(self._event(Kind.SESSION_BEGUN, actor_of(shown), host, rpc))

    def refused(
        self,
        error: Denied,
        caller: Caller,
        shown: Shown | None,
        rpc: str,
        asked: tuple[Operation, ResourceType, str] | None = None,
    ) -> None:
        """A caller asked for what it may not do. Told once of an error, however many tell."""
        if error.audited:
            return
        error.audited = True
        self._count_denied(rpc)
        self._tell_decision(Kind.OPERATION_REFUSED, error.code, caller, shown, rpc, asked)

    def tolerated(
        self, caller: Caller, shown: Shown | None, rpc: str, asked: tuple[Operation, ResourceType, str]
    ) -> None:
        """A caller asked for what it may not do, and does it: the mode is permissive. No refusal is counted."""
        self._tell_decision(Kind.OPERATION_TOLERATED, ErrorCode.NONE, caller, shown, rpc, asked)

    def _tell_decision(
        self,
        kind: Kind,
        status: ErrorCode,
        caller: Caller,
        shown: Shown | None,
        rpc: str,
        asked: tuple[Operation, ResourceType, str] | None,
    ) -> None:
        if self.audit is None:
            return
        actor = actor_of(shown) if shown is not None and shown.caller == caller else _actor(caller)
        event = self._event(kind, actor, caller.host or "", rpc, status=status)
        operation_of, resource = (None, None) if asked is None else (asked[0], Resource(asked[1], asked[2]))
        self.audit.note(replace(event, operation=operation_of, resource=resource, decision=Decision(Effect.DENY)))

    def record_teller(self, kind: Kind, shown: Shown, rpc: str) -> RecordTeller | None:
        """
        What tells that somebody has read or written records of a topic, for as long as its stream lasts; None: nothing
        is written, or a node does what is its own.
        """
        if self.audit is None or shown.node is not None:
            return None
        operation = Operation.WRITE if kind is Kind.RECORDS_WRITTEN else Operation.READ
        actor, host = actor_of(shown), shown.caller.host or ""

        def tell(topic: str) -> None:
            if self.audit is not None:
                resource = Resource(ResourceType.TOPIC, topic)
                self.audit.note(Event(kind, self._clock.now_ms(), actor, host, rpc, operation, resource))

        return tell

    def claim_refused(self, error: HeadraceError, caller: NodeKey | None, peer: str, rpc: str) -> None:
        """A call spoke for a node that it is not, or asked for what nodes alone may ask. ``peer``: as gRPC has it."""
        host = host_of_peer(peer) if peer else ""
        if isinstance(error, Denied):
            if error.audited:
                return
            error.audited = True
        self._count_denied(rpc)
        if self.audit is not None:
            who = str(ANONYMOUS) if caller is None else f"{PrincipalType.NODE.value}:{caller}"
            actor = Actor(who, Method.NOTHING if caller is None else Method.NODE)
            self.audit.note(self._event(Kind.NODE_CLAIM_REFUSED, actor, host, rpc, status=error.code))

    def registered(self, node: NodeKey, start: str, key: bytes, host: str) -> None:
        """
        A node has said by which key the seals of its start are checked; an empty ``start``: it writes no audit.

        Raises:
            Rejected: it is no start.
        """
        if not start:
            return
        life = Start(node, start)
        if self.audit is not None:
            actor = Actor(f"{PrincipalType.NODE.value}:{node}", Method.NODE)
            event = self._event(Kind.NODE_REGISTERED, actor, host, "Controller/RegisterNode")
            self.audit.note(replace(event, change=registration(life, key)))

    def counted(self, node: NodeKey, start: str, events: int) -> None:
        """
        A node says how many events its audit has. Once a minute an event tells of all whose number has changed, so
        that nobody can remove the last ones of a node that runs unseen.

        Raises:
            Rejected: it is no start.
        """
        if self.audit is None or not start:
            return
        life = Start(node, start)
        if life not in self._counts:
            self._counts = {known: count for known, count in self._counts.items() if known.node != node}
        self._counts[life] = events
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._counts_due_ms or self._counts == self._counts_told:
            return
        self._counts_due_ms = now_ms + MINUTE_MS
        news = {start: count for start, count in self._counts.items() if self._counts_told.get(start) != count}
        self._counts_told = dict(self._counts)
        own = Actor(f"{PrincipalType.NODE.value}:{self.audit.node}", Method.NODE)
        self.audit.note(replace(self._event(Kind.NODES_COUNTED, own, "", "Controller/Heartbeat"), change=counted(news)))

    def kind_of(self, rpc: str, shown: Shown, request: Any) -> Kind | None:
        """As what a call is written before it is carried out; None: it is not."""
        if self.audit is None:
            return None
        kind = CHANGES.get(rpc)
        if kind is None or only_asks(request) or _is_own(rpc, shown, request):
            return None
        return kind

    @asynccontextmanager
    async def doing(self, kind: Kind, rpc: str, shown: Shown, request: Any) -> AsyncIterator[Doing]:
        """
        Around a call that changes something: what it is about to do is on disk before the block begins, and how it
        ended before it is answered, as far as that can be written.

        Raises:
            AuditUnavailable: it cannot be written, and nothing was begun.
        """
        audit = self.audit
        assert audit is not None, "kind_of has looked"
        items = items_of(rpc, request)
        doing = Doing(len(items))
        events = [self._of_item(kind, rpc, shown, item) for item in items]
        try:
            await audit.record(*events)
        except AuditUnavailable as error:
            if error.chained:
                await audit.tell(*self._ends(events, items, [error.code] * len(items), {}))
            raise
        ended = ErrorCode.UNKNOWN_SERVER_ERROR
        try:
            with _collecting(doing.changes):
                yield doing
            ended = ErrorCode.NONE
        except HeadraceError as error:
            ended = error.code
            raise
        finally:
            statuses = doing.statuses or [ended] * len(items)
            await audit.tell(*self._ends(events, items, statuses, doing.changes))

    async def announced(
        self, shown: Shown, what: str, asked_from: str, asked: tuple[Operation, ResourceType, str]
    ) -> None:
        """
        A program that is no node does something next, for a caller that may: on disk when this returns. How it ends is
        told by nobody.

        Raises:
            AuditUnavailable: it cannot be written, and must not be done.
        """
        if self.audit is None:
            return
        operation, type, name = asked
        event = self._event(Kind.ADMINISTERED, actor_of(shown), shown.caller.host or "", what, status=None)
        change = change_of({}, {"asked_from": asked_from})
        event = replace(event, operation=operation, resource=Resource(type, name), change=change)
        try:
            await self.audit.record(event)
        except AuditUnavailable as error:
            if error.chained:
                await self.audit.tell(replace(event, time_ms=self._clock.now_ms(), status=error.code))
            raise

    def _ends(
        self,
        events: Sequence[Event],
        items: Sequence[Item],
        statuses: Sequence[ErrorCode],
        changes: Mapping[Named, Change],
    ) -> list[Event]:
        """How each ended, and what else was changed."""
        now_ms = self._clock.now_ms()
        known = {(item.type, item.name): at for at, item in enumerate(items)}
        ends = [replace(event, time_ms=now_ms, status=status) for event, status in zip(events, statuses, strict=True)]
        for named, change in changes.items():
            at = known.get(named)
            if at is None:
                ends.append(replace(ends[0], resource=Resource(*named), change=change))
            else:
                ends[at] = replace(ends[at], change=change)
        return ends

    def _of_item(self, kind: Kind, rpc: str, shown: Shown, item: Item) -> Event:
        change = change_of({}, item.asked)
        event = self._event(kind, actor_of(shown), shown.caller.host or "", rpc, status=None)
        return replace(event, operation=item.operation, resource=Resource(item.type, item.name), change=change)

    def _count_denied(self, rpc: str) -> None:
        if self._denied is not None:
            service, _, operation = rpc.partition("/")
            self._denied.add(1, {"service": service, "operation": operation.partition(" ")[0]})

    def _event(
        self, kind: Kind, actor: Actor, host: str, rpc: str, *, status: ErrorCode | None = ErrorCode.NONE
    ) -> Event:
        return Event(kind, self._clock.now_ms(), actor, host, rpc, status=status)

    def _observe_dropped(self, _: Any) -> Iterator[Any]:
        from opentelemetry.metrics import Observation

        if self.audit is not None:
            for kind, count in dict(self.audit.counts.dropped).items():
                yield Observation(count, {"kind": kind.value})

    def _observe_generation(self, _: Any) -> Iterator[Any]:
        from opentelemetry.metrics import Observation

        yield Observation(self.generation())

    def _observe_queued(self, _: Any) -> Iterator[Any]:
        from opentelemetry.metrics import Observation

        yield Observation(0 if self.audit is None else self.audit.queued)

    def _observe_failures(self, _: Any) -> Iterator[Any]:
        from opentelemetry.metrics import Observation

        yield Observation(0 if self.audit is None else self.audit.counts.failures)


@contextmanager
def _collecting(changes: dict[Named, Change]) -> Iterator[None]:
    before = _changes.set(changes)
    try:
        yield
    finally:
        _changes.reset(before)


def _claimed(bearer: str | None) -> tuple[Method, str]:
    """What somebody has shown who is not let in: the id of the key that it says to have."""
    if not bearer:
        return Method.NOTHING, ""
    if not bearer.startswith(PREFIX):
        return Method.TOKEN, ""
    try:
        return Method.API_KEY, parse_key(bearer)[0]
    except HeadraceError:
        return Method.API_KEY, ""


def _actor(caller: Caller) -> Actor:
    return Actor(str(caller.principal), Method.NOTHING, groups=tuple(map(str, caller.groups)))


def _is_own(rpc: str, shown: Shown, request: Any) -> bool:
    """Whether a node does something of its own, such as ending a transaction or leaving."""
    node = shown.node
    if node is None:
        return False
    if rpc == "Controller/UnregisterNode":
        return node.id == request.id and node.role is _role_of(request.role)
    return node.role is not Role.ADMIN


def _role_of(number: int) -> Role | None:
    from headrace_common.rpc.convert import role_from_proto

    try:
        return role_from_proto(number)
    except HeadraceError:
        return None
