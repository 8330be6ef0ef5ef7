"""
Decides who calls a service and whether the call is let in: the interceptor around a service's handlers.

Who shows nothing valid to a closed cluster is refused before anything of the request is read. Else the handler finds
the rights of its caller in ``current_rights``, and hands them to the engine. Streams are looked at for as long as they
last: one ends when its credential does, and one of a node when the certificate of its connection does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import grpc
import grpc.aio

from headrace_common.core.access.authentication import (
    Shown,
    Verified,
    authenticate,
    bearer_of,
    check_signed,
    node_shown,
)
from headrace_common.core.access.authentication import end_ms as credential_end_ms
from headrace_common.core.access.client_certificates import ClientCertificate, read_certificate, write_certificate
from headrace_common.core.access.control import EVERYTHING, Asked, Control, Rights
from headrace_common.core.access.observed import Stranger
from headrace_common.core.access.principal import ANONYMOUS, Principal, PrincipalType
from headrace_common.core.access.rows import Mode, Reader, View
from headrace_common.core.access.sessions import signers_of
from headrace_common.core.access.state import Caller
from headrace_common.core.audit.kinds import Kind
from headrace_common.core.errors import (
    ClusterAuthorizationFailed,
    CredentialsExpired,
    CredentialsRevoked,
    Denied,
    HeadraceError,
    MetadataUnavailable,
    Overloaded,
    Unauthenticated,
)
from headrace_common.core.image import EMPTY_IMAGE, ClusterImage, NodeKey, Role
from headrace_common.core.moments import iso_of
from headrace_common.rpc.access_rules import NOBODY, NODES, AccessTable, Asks, AsksAny, AsksAnywhere, Rule
from headrace_common.rpc.interceptor import Continuation, Handler, refuses, refusing, send_all, with_behavior
from headrace_common.rpc.node_gate import FORWARDED_CERTIFICATE_KEY, FORWARDED_HOST_KEY, FORWARDED_KEY, NodeGate
from headrace_common.rpc.peers import peer_of
from headrace_common.runtime.admission import host_of_peer
from headrace_common.runtime.auditing import CHANGES, WRITTEN_BY_ENGINES, Auditing, RecordTeller
from headrace_common.runtime.clock import Clock, Deadline
from headrace_common.runtime.connection_ends import ConnectionEnds

if TYPE_CHECKING:  # only who asks clients for certificates has what reads them
    from headrace_common.runtime.client_certificates import ClientCertificates

AUTHORIZATION_KEY: Final = "authorization"
KNOWN_MAX: Final = 10_000
"""Callers, each from one address, that are remembered for as long as nothing changes of access."""
EXPIRY_LATE_MS: Final = 100.0
"""A stream is looked at so long after its credential has expired: clocks of the loop and of the day differ a little."""
SEEN_ANEW_MS: Final[Mapping[Mode, float]] = {Mode.PERMISSIVE: 60_000.0, Mode.CLOSED: 600_000.0}
"""How often it is looked anew at what streams do, which remember what they may."""
_HEALTH: Final = frozenset({"Health/Check", "Health/Watch"})

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_shown: ContextVar[Shown | None] = ContextVar("headrace_shown", default=None)
_NOBODY: Final = Shown(Caller(ANONYMOUS))
_rights: ContextVar[Rights] = ContextVar("headrace_rights", default=EVERYTHING)
_rpc: ContextVar[str] = ContextVar("headrace_rpc", default="")
_auditing: ContextVar[Auditing | None] = ContextVar("headrace_auditing", default=None)


def current_rights() -> Rights:
    """What the caller of the running handler may; where no gate is: everything."""
    return _rights.get()


def current_shown() -> Shown:
    """Who asked the running handler, by what; where no gate is: nobody."""
    return _shown.get() or _NOBODY


def current_counted() -> Principal | None:
    """
    The principal whose share the running handler takes of what all have together; None: a node asks, whose work is the
    cluster's, or somebody who has shown nothing, as everybody may.
    """
    return _counted(current_shown())


def current_bearer() -> str | None:
    """The credential of the caller of the running handler; None: it is a node or nobody, or no handler runs."""
    shown = _shown.get()
    return None if shown is None else shown.bearer


def current_certificate() -> bytes | None:
    """The certificate of the caller of the running handler, as nodes tell it; None: it has shown none."""
    shown = _shown.get()
    return None if shown is None or shown.certificate is None else write_certificate(shown.certificate)


def nobody_calls() -> bool:
    """Whether the running handler serves somebody who has shown nothing, which only happens before it is closed."""
    shown = _shown.get()
    return shown is not None and shown.bearer is None and shown.node is None and shown.certificate is None


def current_host() -> str | None:
    """The address that the caller of the running handler calls from; None: it is not known."""
    return current_shown().caller.host


def current_record_teller(kind: Kind) -> RecordTeller | None:
    """
    What tells the audit, by the name of a topic, that the caller of the running handler has read or written records
    of it; see ``Auditing.record_teller``. None: nobody is told.
    """
    auditing = _auditing.get()
    return None if auditing is None else auditing.record_teller(kind, current_shown(), _rpc.get())


@contextmanager
def by_itself() -> Iterator[None]:
    """
    The block, and what it starts, is done by this node for itself: no credential of a caller goes with its calls. For
    what several callers share, what outlives a call, and what has to be seen whole to be judged; whoever tells a caller
    of it decides by itself what that caller may know.
    """
    before = _shown.set(None), _rights.set(EVERYTHING)
    try:
        yield
    finally:
        _shown.reset(before[0])
        _rights.reset(before[1])


@asynccontextmanager
async def audited(rpc: str, request: Any) -> AsyncIterator[None]:
    """
    Around what an engine does by itself that is in ``WRITTEN_BY_ENGINES``: see ``Auditing.doing``.

    Args:
        request: of that operation, as gRPC would have it.

    Raises:
        AuditUnavailable: it cannot be written, and nothing was begun.
    """
    auditing, shown = _auditing.get(), current_shown()
    kind = None if auditing is None else auditing.kind_of(rpc, shown, request)
    if auditing is None or kind is None:
        yield
        return
    async with auditing.doing(kind, rpc, shown, request):
        yield


@dataclass(slots=True, eq=False)
class _Stream:
    shown: Shown
    task: asyncio.Task[Any]
    over: HeadraceError | None = None
    """Why it was ended."""
    end_ms: float | None = None
    """When its credential is over, as far as was known when it was last looked at: it is looked at again then."""
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True)
class _Calls:
    """Of one principal, under way."""

    number: int = 0


class Access:
    """Who may do what in this process, by the newest image. One for all of its servers, on one event loop."""

    def __init__(
        self, image: Callable[[], ClusterImage], nodes: NodeGate, clock: Clock, reader: Reader | None = None
    ) -> None:
        """``reader``: of the rows of these images, where the process has one already."""
        self.nodes = nodes
        """Who is a node."""
        self._control = Control(clock.now_ms)
        self._image = image
        self._clock = clock
        self._reader = reader or Reader()
        self._verified = Verified()
        self._signers_of = EMPTY_IMAGE.nodes
        self._known: dict[tuple[str | None, str, ClientCertificate | None], Shown] = {}
        self._known_of = self._control.view
        """The view by which they are known."""
        self._streams: set[_Stream] = set()
        self._looked_at = self._control.view
        self._seen_ms = 0.0
        self._looked_at_signers = self._verified.signers
        self.tokens = self._verified.tokens
        """What was verified of issuers' tokens."""
        self.auditing = Auditing(clock)
        """What is told to the audit of this process."""
        self._control.on_refused = self._on_refused
        self._control.on_tolerated = self._on_tolerated
        nodes.on_refused = self.auditing.claim_refused
        self.auditing.generation = lambda: self._control.view.access.generation
        self.calls_per_principal_max = 0
        """Calls at one time of one principal at all servers of this process; 0: there is no bound."""
        self._calls: dict[Principal, _Calls] = {}
        self.stale_ms_max = 0.0
        """No controller has been heard for longer: a closed cluster lets nobody in anew here. 0: never so."""
        self.heard_ms: Callable[[], float | None] = lambda: None
        """When a controller was last heard, on the clock's monotonic time; None: it never was, or none has to be."""

    @property
    def control(self) -> Control:
        """Decides by the newest image."""
        image = self._image()
        self._control.renew(self._reader.read(image.access, image.access_step))
        return self._control

    @property
    def streams(self) -> int:
        """How many are open."""
        return len(self._streams)

    @property
    def view(self) -> View:
        """The rows of the newest image."""
        return self.control.view

    def authenticate(
        self, bearer: str | None, host: str, certificate: ClientCertificate | None = None, *, anew: bool = True
    ) -> Shown:
        """
        Who shows ``bearer``, calling from ``host``; or has shown ``certificate``, see ``authenticate``.

        Args:
            anew: False: it was let in before, and its stream still runs.

        Raises:
            Unauthenticated: nobody who is let in.
            MetadataUnavailable: this process has heard of no cluster yet, or for too long of no change of access.
        """
        if self._image().revision == EMPTY_IMAGE.revision:
            raise MetadataUnavailable("this node has no metadata yet, so it cannot tell who may ask it; try again soon")
        view, now_ms = self.view, self._clock.now_ms()
        if anew and self.stale_ms_max and view.mode is Mode.CLOSED:
            self._check_fresh(now_ms)
        self._renew_signers()
        if view is not self._known_of:
            self._known_of = view
            self._known.clear()
        known = self._known.get((bearer, host, certificate))
        if known is not None and not known.expired(now_ms):
            return known
        shown = authenticate(view, bearer, host, now_ms, self._verified, certificate)
        self.auditing.began(shown, host, _rpc.get())
        if shown.has_password:
            return shown
        if bearer is None or shown.key is not None or shown.token is not None:  # else it may be good a little later
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[bearer, host, certificate] = shown
        return shown

    def _check_fresh(self, now_ms: float) -> None:
        heard_ms = self.heard_ms()
        silent_ms = 0.0 if heard_ms is None else self._clock.monotonic_ms() - heard_ms
        if silent_ms > self.stale_ms_max:
            raise MetadataUnavailable(
                f"this node has heard no controller since {iso_of(int(now_ms - silent_ms))}, so it cannot tell who may "
                "still ask it, and lets nobody in anew (access_stale_ms_max); try another node, or again soon"
            )

    def see(self, shown: Shown) -> None:
        """A call has come in: who would not be let in so if the cluster were closed is written down."""
        stranger = shown.caller.principal == ANONYMOUS
        if self._control.view.mode is Mode.PERMISSIVE and (stranger or shown.plain):
            wrong = stranger and shown.bearer is not None
            came = Stranger(shown.caller.host or "", wrong, shown.plain)
            self._control.observed.stranger(came, int(self._clock.now_ms()))

    def _see_streams(self) -> None:
        """Have those who call for long be seen, and what they do, though they remember what they may."""
        now_ms = self._clock.now_ms()
        if now_ms - self._seen_ms >= SEEN_ANEW_MS[self._control.view.mode]:
            self._seen_ms = now_ms
            self._control.ask_anew()
            for stream in self._streams:
                self.see(stream.shown)

    def connection_ends(self) -> ConnectionEnds:
        """For a listener to which nodes come with certificates."""
        return ConnectionEnds(self.nodes, self._clock, lambda: self.auditing.ended(CredentialsExpired))

    def rights(self, shown: Shown) -> Rights:
        """What who has shown that may, from now on."""
        return Rights(self.control, shown.caller)

    @contextmanager
    def serving(self, shown: Shown, rpc: str = "") -> Iterator[Rights]:
        """
        The block, and what it starts, is done for this caller: ``current_rights`` and ``current_bearer``.

        Args:
            rpc: ``SERVICE/OPERATION`` that it is part of.
        """
        rights = self.rights(shown)
        if self._control.view.mode is not Mode.OPEN:
            self._see_streams()
        before = _shown.set(shown), _rights.set(rights), _rpc.set(rpc), _auditing.set(self.auditing)
        try:
            yield rights
        finally:
            _shown.reset(before[0])
            _rights.reset(before[1])
            _rpc.reset(before[2])
            _auditing.reset(before[3])

    async def carry_out(self, inner: Handler, request: Any, context: Context, rpc: str) -> Any:
        """The answer of what changes something, which is in the audit when there is an answer."""
        shown, auditing = current_shown(), self.auditing
        try:
            kind = None if rpc in WRITTEN_BY_ENGINES else auditing.kind_of(rpc, shown, request)
            if kind is None:
                return await inner(request, context)
            async with auditing.doing(kind, rpc, shown, request) as doing:
                answer = await inner(request, context)
                doing.answered(answer)
                return answer
        except Denied as error:
            auditing.refused(error, shown.caller, shown, rpc)
            raise

    def _on_refused(self, error: Denied, caller: Caller, asked: Asked) -> None:
        self.auditing.refused(error, caller, _shown.get(), _rpc.get(), asked)

    def _on_tolerated(self, caller: Caller, asked: Asked) -> None:
        self.auditing.tolerated(caller, _shown.get(), _rpc.get(), asked)

    @contextmanager
    def counting(self, shown: Shown) -> Iterator[None]:
        """
        The block is a call of this caller, one of so many. Nodes are not counted, nor is who has shown nothing: that
        is everybody.

        Raises:
            Overloaded: its principal has as many as it may.
        """
        who, most = _counted(shown), self.calls_per_principal_max
        if not most or who is None:
            yield
            return
        calls = self._calls.get(who)
        if calls is None:
            calls = self._calls[who] = _Calls()
        if calls.number >= most:
            raise Overloaded(
                f"{who} has {most} calls under way at this node, streams among them, and may have no more "
                "(calls_per_principal_max); close clients that are not needed, give programs principals of their own, "
                "or raise it"
            )
        calls.number += 1
        try:
            yield
        finally:
            calls.number -= 1
            if not calls.number:
                del self._calls[who]

    @contextmanager
    def streaming(self, shown: Shown) -> Iterator[None]:
        """
        The block lasts at most as long as the credential.

        Raises:
            Unauthenticated: that is over.
        """
        task = asyncio.current_task()
        assert task is not None, "handlers are tasks"
        stream = _Stream(shown, task)
        self._streams.add(stream)
        self._wake_at_end(stream)
        try:
            yield
        except asyncio.CancelledError:
            if stream.over is None or task.uncancel() > 0:
                raise  # the caller is gone too
        finally:
            self._streams.discard(stream)
            if stream.timer is not None:
                stream.timer.cancel()
        if stream.over is not None:
            raise stream.over

    def look(self) -> None:
        """To be called with each new image: streams end whose credentials were taken back."""
        view = self.view
        self._renew_signers()
        if view is not self._looked_at or self._verified.signers is not self._looked_at_signers:
            self._looked_at, self._looked_at_signers = view, self._verified.signers
            for stream in list(self._streams):
                self._end_if_over(stream)
                self._wake_at_end(stream)

    def _renew_signers(self) -> None:
        image = self._image()
        if image.nodes is not self._signers_of:
            self._signers_of = image.nodes
            signers = signers_of(image)
            if signers != self._verified.signers:
                self._verified.signers = signers

    def _wake_at_end(self, stream: _Stream) -> None:
        """Have the stream looked at when its credential is over, as far as is known now."""
        end_ms = credential_end_ms(self.view, stream.shown)
        if end_ms != stream.end_ms and stream.over is None:
            stream.end_ms = end_ms
            if stream.timer is not None:
                stream.timer.cancel()
            left_ms = None if end_ms is None else end_ms - self._clock.now_ms()
            stream.timer = None if left_ms is None else Deadline(left_ms + EXPIRY_LATE_MS).call(self._at_end, stream)

    def _at_end(self, stream: _Stream) -> None:
        stream.end_ms = None  # clocks differ a little: it may have to be looked at again
        self._end_if_over(stream)

    def _end_if_over(self, stream: _Stream) -> None:
        if stream.over is None and self.view.mode is Mode.CLOSED:
            stream.over = self._why_over(stream)
            if stream.over is not None:
                self.auditing.ended(type(stream.over))
                stream.task.cancel()

    def _why_over(self, stream: _Stream) -> HeadraceError | None:
        shown = stream.shown
        if shown.caller.principal.type is PrincipalType.NODE:
            return None
        if shown.key is not None and shown.key.id not in self.view.keys:
            return CredentialsRevoked(f"API key {shown.key.id} was deleted")
        try:
            if shown.token is not None or shown.session is not None:
                check_signed(self.view, shown, self._clock.now_ms(), self._verified.signers)
                return None
            found = self.authenticate(shown.bearer, shown.caller.host or "", shown.certificate, anew=False)
        except HeadraceError as error:
            return error
        if found.caller != shown.caller:  # it was let in while the cluster was open
            return Unauthenticated("the cluster was closed; connect again, with your credential")
        return None


class AccessGate(grpc.aio.ServerInterceptor):
    """
    One for each server, outside of its ``NodeGate``, which refuses who is no node what nodes alone may ask.

    Args:
        takes_nodes: nodes come to this server too, or alone.
        certificates: of clients, on whose connections it requires them: they are who calls.
    """

    def __init__(
        self,
        access: Access,
        table: AccessTable,
        *,
        takes_nodes: bool,
        certificates: ClientCertificates | None = None,
    ) -> None:
        self._access = access
        self._table = table
        self._takes_nodes = takes_nodes
        self._certificates = certificates
        self._ends = access.connection_ends() if takes_nodes and access.nodes.by_certificates else None

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The method's handler for who is let in; or one that refuses the call and reads nothing of it."""
        handler = await continuation(handler_call_details)
        operation = handler_call_details.method.rpartition(".")[2]
        rule = NOBODY if operation in _HEALTH else self._table.get(operation)
        if handler is None or rule is NOBODY:
            return handler
        if rule is None:
            return refusing(ClusterAuthorizationFailed(f"{operation} is in no table of rights, so nobody may"))
        metadata = dict(handler_call_details.invocation_metadata or ())
        error = self._refusal_unread(metadata)
        if error is not None:
            told = self._told(error, metadata, operation)
            return refusing(told, lambda context: self._tell_failed(error, metadata, context, operation))
        if refuses(handler):
            return handler
        return with_behavior(handler, lambda inner, streams: self._let_in(inner, streams, operation, rule))

    def _refusal_unread(self, metadata: dict[str, Any]) -> HeadraceError | None:
        """Why a call is refused by its metadata alone; None: it may be let in."""
        access = self._access
        if access.view.mode is not Mode.CLOSED or self._certificates is not None:
            return None
        if self._takes_nodes and (access.nodes.by_certificates or access.nodes.by_metadata(metadata) is not None):
            return None
        try:
            access.authenticate(_bearer(metadata), "")
        except HeadraceError as error:
            return error
        return None

    def _told(self, error: HeadraceError, metadata: dict[str, Any], operation: str) -> HeadraceError:
        """Who only says that it is a node hears why it is taken for none: no API key would be of use to it."""
        if not self._takes_nodes or _bearer(metadata) is not None:
            return error
        return self._access.nodes.unproven(operation, metadata) or error

    def _tell_failed(self, error: HeadraceError, metadata: dict[str, Any], context: Context, operation: str) -> None:
        if isinstance(error, Unauthenticated):
            host, certificate = host_of_peer(peer_of(context)), self._certificate(context)
            self._access.auditing.failed(error, _bearer(metadata), host, operation, certificate)

    def _let_in(self, inner: Handler, streams: bool, operation: str, rule: Rule) -> Handler:
        access, ends = self._access, self._ends
        changes = operation in CHANGES

        async def let_in(request: Any, context: Context) -> Any:
            if ends is not None:
                ends.check(context)
            try:
                shown = self._shown(context)
            except Unauthenticated as error:
                metadata = dict(context.invocation_metadata() or ())
                self._tell_failed(error, metadata, context, operation)
                if self._node(context) is not None:
                    raise  # it asks for somebody else, whose credential this is about
                raise self._told(error, metadata, operation) from None
            access.see(shown)
            with access.counting(shown), access.serving(shown, operation) as rights:
                check(rule, request, shown, rights)
                if changes:
                    return await access.carry_out(inner, request, context, operation)
                if not streams:
                    return await inner(request, context)
                # With it on its way no refusal could be sent: a stream that is ended in its first answer would hang.
                await context.send_initial_metadata(())
                with _lasting(ends, context), access.streaming(shown):
                    await send_all(inner(request, context), context)
            return None

        async def of_nodes(request: Any, context: Context) -> Any:
            """Who is none is refused by the gate for nodes, but in a cluster that has no way to tell."""
            if ends is not None:
                ends.check(context)
            if access.view.mode is Mode.CLOSED and self._node(context) is None:
                error = ClusterAuthorizationFailed(f"{operation} is for nodes of the cluster, and this call shows none")
                access.auditing.claim_refused(error, None, peer_of(context), operation)
                raise error
            if not streams:
                return await inner(request, context)
            if ends is not None:
                await context.send_initial_metadata(())  # as above
            with _lasting(ends, context):
                await send_all(inner(request, context), context)
            return None

        return of_nodes if rule is NODES else let_in

    def _node(self, context: Context) -> NodeKey | None:
        return self._access.nodes.caller(context) if self._takes_nodes else None

    def _certificate(self, context: Context) -> ClientCertificate | None:
        return None if self._certificates is None else self._certificates.of(context)

    def _shown(self, context: Context) -> Shown:
        access, metadata = self._access, dict(context.invocation_metadata() or ())
        node = self._node(context)
        if node is None:
            host, certificate = host_of_peer(peer_of(context)), self._certificate(context)
            shown = access.authenticate(_bearer(metadata), host, certificate)
            return replace(shown, plain=True) if access.nodes.is_plain(context) else shown
        forwarded: Any = metadata.get(FORWARDED_KEY) if node.role is Role.ADMIN else None
        if forwarded is None:
            return node_shown(node)
        bearer = forwarded.decode(errors="replace") or None
        vouched: Any = metadata.get(FORWARDED_CERTIFICATE_KEY)
        certificate = None if vouched is None else read_certificate(vouched)
        return access.authenticate(bearer, str(metadata.get(FORWARDED_HOST_KEY, "")), certificate)


def check(rule: Rule, request: Any, shown: Shown, rights: Rights) -> None:
    """
    Ask what ``rule`` says of a whole request.

    Raises:
        Denied: the caller may not ask for this.
    """
    match rule:
        case Asks(wants, own):
            if not own or shown.node is None or shown.node.role not in own:
                for one in wants(request):
                    rights.check(*one)
        case AsksAny(wants):
            rights.check_any(*wants(request))
        case AsksAnywhere(operation, type):
            rights.check_anywhere(operation, type)


def _lasting(ends: ConnectionEnds | None, context: Context) -> AbstractContextManager[None]:
    return nullcontext() if ends is None else ends.lasting(context)


def _counted(shown: Shown) -> Principal | None:
    principal = shown.caller.principal
    nobody = principal.name == ANONYMOUS.name and principal == ANONYMOUS  # names alone are compared fast
    return None if nobody or shown.node is not None else principal


def _bearer(metadata: dict[str, Any]) -> str | None:
    value = metadata.get(AUTHORIZATION_KEY)
    return None if value is None else bearer_of(str(value))
