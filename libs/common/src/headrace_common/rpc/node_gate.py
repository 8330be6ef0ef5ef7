"""
Decides which calls come from nodes of the cluster: what a node adds to its calls, and what a server asks of them.

A node says in the metadata of each call who it is. With TLS its certificate proves the role, and the servers that nodes
come to ask for one. Without it a node shows the cluster's node token, to addresses that it knows to be those of other
nodes: the token tells nodes from others, while which node it is remains what it says. The gate of a server refuses by
the table of ``core.node_rules``; callers without a token or certificate before anything of the request is read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import grpc
import grpc.aio

from headrace_common.core.errors import ClusterAuthorizationFailed, HeadraceError, MetadataUnavailable, Rejected
from headrace_common.core.features import NODE_TOKEN
from headrace_common.core.ids import Endpoint, is_loopback
from headrace_common.core.image import EMPTY_IMAGE, ClusterImage, NodeKey, Role
from headrace_common.core.node_rules import (
    NO_CERTIFICATE,
    NO_TOKEN,
    WHO_MAY_CALL,
    foreign,
    host_of,
    node_key_of,
    node_named,
    refusal,
)
from headrace_common.rpc.channels import PLAIN, Certificates, Metadata, Security
from headrace_common.rpc.interceptor import Continuation, Handler, refusing, with_behavior
from headrace_common.rpc.peers import peer_of

NODE_KEY: Final = "headrace-node"
TOKEN_KEY: Final = "headrace-node-token"


class Tokens(Protocol):
    """The cluster's node token, or the two that hold while it is changed."""

    demanded: bool
    """Whether others have to show it, once all nodes of the cluster know that there is one."""
    loopback_only: bool
    """Whether it does not leave this machine."""

    @property
    def shown(self) -> str:
        """What this process shows."""
        ...

    def takes(self, token: str) -> bool:
        """Whether a caller that shows ``token`` is a node."""
        ...


class KnownNodes:
    """Where nodes of the cluster are. Safe to use from several threads."""

    def __init__(self, image: Callable[[], ClusterImage], others: Callable[[], Iterable[Endpoint]] = tuple) -> None:
        """``others``: controllers that are known before there is an image, such as those of the settings."""
        self._image = image
        self._others = others
        self._of: ClusterImage | None = None
        self._roles: dict[str, Role] = {}

    def __contains__(self, address: object) -> bool:
        return self.role_at(address) is not None

    def role_at(self, address: object) -> Role | None:
        """What is at ``host:port`` as far as the cluster says, whatever answers there; None: no node."""
        image = self._image()
        if self._of is not image:
            nodes = image.nodes.values()
            self._roles = {str(at): node.key.role for node in nodes for at in (node.grpc, node.internal) if at}
            self._of = image
        role = self._roles.get(str(address))
        if role is None and any(str(at) == address for at in self._others()):
            return Role.CONTROLLER
        return role


FORWARDED_KEY: Final = "headrace-bearer-bin"
"""The credential of whom an admin node asks for; empty: it has shown none."""
FORWARDED_HOST_KEY: Final = "headrace-host"
"""The address that this one calls from; rules may name it."""
FORWARDED_CERTIFICATE_KEY: Final = "headrace-certificate-bin"
"""The certificate that this one has shown, as ``client_certificates`` writes it; beside an empty ``FORWARDED_KEY``."""


@dataclass(frozen=True, slots=True)
class OnBehalf:
    """Whom a node asks for, as the running call says. Admin nodes ask for others; all the others for themselves."""

    bearer: Callable[[], str | None] = lambda: None
    """Its credential; it goes to nodes alone, by TLS or within this machine."""
    certificate: Callable[[], bytes | None] = lambda: None
    """That, where it is all that was shown. It goes where a credential would."""
    host: Callable[[], str | None] = lambda: None
    """The address that it calls from."""
    nobody: Callable[[], bool] = lambda: False
    """Whether it has shown nothing, which is said: else it would count as the node."""


OF_ITS_OWN: Final = OnBehalf()


def node_security(
    key: NodeKey,
    tokens: Tokens | None,
    known: KnownNodes,
    certificates: Certificates | None = None,
    behalf: OnBehalf = OF_ITS_OWN,
    closed: Callable[[], bool] = lambda: False,
) -> Security:
    """
    How the node ``key`` shows who it is: with ``certificates`` by TLS, to whoever shows the role that the cluster says;
    else with ``tokens`` to ``known`` nodes; without any it shows nothing.

    Args:
        behalf: whom it asks for.
        closed: whether a call without their credential would be decided as one of the node itself, which may other
            things than whom it asks for. Such a call is not made: it raises ``ClusterAuthorizationFailed``.
    """

    def forwarded(target: str, safe: bool) -> Metadata:
        if key.role is not Role.ADMIN:
            return ()
        shown, vouched = behalf.bearer(), None
        if shown is None:
            vouched = behalf.certificate()
            if vouched is not None:
                shown = ""
            elif behalf.nobody():
                shown, safe = "", True
        if shown is None:
            return ()
        if safe:
            at = behalf.host()
            return (
                (FORWARDED_KEY, shown.encode()),
                *(() if vouched is None else ((FORWARDED_CERTIFICATE_KEY, vouched),)),
                *(() if at is None else ((FORWARDED_HOST_KEY, at),)),
            )
        if closed():
            raise ClusterAuthorizationFailed(
                f"the credential of this call is not passed on to {target}: it goes to nodes of the cluster alone, by "
                "TLS or within one machine; give the nodes certificates"
            )
        return ()

    if certificates is not None:
        said = ((NODE_KEY, str(key)),)

        def name_at(target: str) -> str | None:
            role = known.role_at(target)
            return None if role is None else host_of(role.value)

        return Security(lambda target: (*said, *forwarded(target, target in known)), certificates, name_at)
    if tokens is None:
        return PLAIN
    name = (NODE_KEY, str(key))

    def metadata(target: str) -> Metadata:
        if target not in known or (tokens.loopback_only and not is_loopback(target)):
            return (name, *forwarded(target, safe=False))
        return (name, (TOKEN_KEY, tokens.shown), *forwarded(target, is_loopback(target)))

    return Security(metadata)


class NodeGate(grpc.aio.ServerInterceptor):
    """
    The innermost interceptor of a server, one for all servers of a process.

    Where the process has certificates, of ``trust_domain``, callers are the nodes that theirs name. Else tokens decide:
    it refuses nothing without ``tokens``, nor where the cluster, by its ``image``, is below the level of node tokens.
    Who shows no token has to wait until there is an image. Where the process answers both (``also_plain``), a call is
    decided by what its connection is.
    """

    def __init__(
        self,
        tokens: Tokens | None = None,
        image: Callable[[], ClusterImage] = lambda: EMPTY_IMAGE,
        trust_domain: str | None = None,
        *,
        also_plain: bool = False,
    ) -> None:
        self._tokens = tokens
        self._image = image
        self._trust_domain = trust_domain
        self._also_plain = also_plain
        self.on_refused: Callable[[HeadraceError, NodeKey | None, str, str], None] = lambda *_: None
        """Called with each refusal, the node that the call has shown to come from, gRPC's text for where it comes
        from, and the operation; both empty where they are not known."""

    def of_clients(self) -> grpc.aio.ServerInterceptor:
        """The same for a server that asks nobody for a certificate: what nodes alone may ask is refused unread."""
        return self if self._trust_domain is None else _NoNodes(self)

    @property
    def closed(self) -> bool:
        """Whether who shows no token, or no certificate, is no node."""
        if self._trust_domain is not None and not self._also_plain:
            return True
        return self._demanded and self._image().feature_level >= NODE_TOKEN.level

    @property
    def _demanded(self) -> bool:
        return self._tokens is not None and self._tokens.demanded

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The method's handler, or one that refuses the call and reads nothing of it."""
        operation = handler_call_details.method.rpartition(".")[2]
        allowed = WHO_MAY_CALL.get(operation)
        if allowed is not None and self._trust_domain is not None:
            handler = await continuation(handler_call_details)
            return handler and with_behavior(handler, lambda inner, _: self._holding(inner, operation, allowed))
        if allowed is not None and self._demanded:
            metadata = handler_call_details.invocation_metadata
            error = self._refusal(operation, allowed, metadata)
            if error is not None:
                return refusing(
                    error, lambda context: self._tell(error, self.by_metadata(metadata), context, operation)
                )
        return await continuation(handler_call_details)

    def _holding(self, inner: Handler, operation: str, allowed: Collection[Role]) -> Handler:
        """A certificate is the connection's, of which an interceptor is told nothing; the handler is."""

        def held(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            if not self._by_tokens(context):
                error: HeadraceError | None = refusal(operation, allowed, self.caller(context), NO_CERTIFICATE)
            elif self._demanded:
                error = self._refusal(operation, allowed, context.invocation_metadata())
            else:
                error = None
            if error is not None:
                self._tell(error, self.caller(context), context, operation)
                raise error
            return inner(request, context)

        return held

    def _refusal(self, operation: str, allowed: Collection[Role], metadata: Any) -> HeadraceError | None:
        if self.closed:
            return refusal(operation, allowed, self.by_metadata(metadata), NO_TOKEN)
        if self._image().revision == EMPTY_IMAGE.revision and self.by_metadata(metadata) is None:
            return MetadataUnavailable(
                f"this node has no metadata yet, so it cannot tell who may ask it for {operation}; try again soon"
            )
        return None

    def caller(self, context: grpc.aio.ServicerContext[Any, Any]) -> NodeKey | None:
        """The node that a call has shown to come from; None: it shows no valid token, or no certificate of a node."""
        if self._trust_domain is not None and not self._by_tokens(context):
            return _named(context, self._trust_domain)
        return self.by_metadata(context.invocation_metadata())

    @property
    def also_plain(self) -> bool:
        """Whether the process answers plain text beside TLS."""
        return self._also_plain

    def is_plain(self, context: grpc.aio.ServicerContext[Any, Any]) -> bool:
        """Whether a call comes in plain text to a process that speaks TLS too."""
        return self._also_plain and not _is_secure(context)

    def _by_tokens(self, context: grpc.aio.ServicerContext[Any, Any]) -> bool:
        """Whether a token proves who calls, and no certificate."""
        return self._trust_domain is None or self.is_plain(context)

    def unproven(self, operation: str, metadata: Any) -> HeadraceError | None:
        """What is said to a call that says which node it is, and shows no proof; None: it says no such thing."""
        allowed = WHO_MAY_CALL.get(operation)
        if allowed is None or _node_said(metadata) is None:
            return None
        return refusal(operation, allowed, None, NO_CERTIFICATE if self.by_certificates else NO_TOKEN)

    @property
    def trust_domain(self) -> str | None:
        """Of the certificates of nodes; None: nodes have none."""
        return self._trust_domain

    @property
    def by_certificates(self) -> bool:
        """Whether certificates prove who is a node, which a call's metadata tell nothing of."""
        return self._trust_domain is not None

    def hold(self, caller: NodeKey | None, claimed: NodeKey, *besides: Role) -> None:
        """
        Hold a request that speaks for a node to who its call comes from; nodes of the roles ``besides`` may speak too.

        Raises:
            ClusterAuthorizationFailed: it comes from somebody else.
        """
        if self.closed and caller != claimed and (caller is None or caller.role not in besides):
            error = foreign(caller, claimed)
            self.on_refused(error, caller, "", "")
            raise error

    def _tell(
        self, error: HeadraceError, caller: NodeKey | None, context: grpc.aio.ServicerContext[Any, Any], rpc: str
    ) -> None:
        if isinstance(error, ClusterAuthorizationFailed):
            self.on_refused(error, caller, peer_of(context), rpc)

    def holding(self, operation: str, context: grpc.aio.ServicerContext[Any, Any]) -> Callable[[], None]:
        """
        For a stream of ``operation`` that lasts: called for each of its requests, it raises
        ``ClusterAuthorizationFailed`` once only nodes may ask and this caller has not shown to be one of them.
        """
        caller, allowed = self.caller(context), WHO_MAY_CALL[operation]
        assert allowed is not None, f"{operation} is for nodes"
        shown = NO_TOKEN if self._by_tokens(context) else NO_CERTIFICATE
        error = refusal(operation, allowed, caller, shown)

        def hold() -> None:
            if error is not None and self.closed:
                raise error

        return hold

    def by_metadata(self, metadata: Any) -> NodeKey | None:
        """The node that a token in the metadata of a call proves, with what else they say; None: there is none."""
        if self._tokens is None:
            return None
        token = dict(metadata or ()).get(TOKEN_KEY)
        if not isinstance(token, str) or not self._tokens.takes(token):
            return None
        return _node_said(metadata)


class _NoNodes(grpc.aio.ServerInterceptor):
    """See ``NodeGate.of_clients``."""

    def __init__(self, gate: NodeGate) -> None:
        self._gate = gate

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The method's handler, or one that refuses the call and reads nothing of it."""
        operation = handler_call_details.method.rpartition(".")[2]
        allowed = WHO_MAY_CALL.get(operation)
        error = None if allowed is None else refusal(operation, allowed, None, NO_CERTIFICATE)
        if error is None:
            return await continuation(handler_call_details)
        return refusing(error, lambda context: self._gate._tell(error, None, context, operation))


def _is_secure(context: grpc.aio.ServicerContext[Any, Any]) -> bool:
    """Whether the call's connection speaks TLS."""
    return b"ssl" in context.auth_context().get("transport_security_type", ())


def _named(context: grpc.aio.ServicerContext[Any, Any], trust_domain: str) -> NodeKey | None:
    """The node of a call: its certificate says the role, and the id if it has one; else the call does."""
    for uri in context.auth_context().get("peer_spiffe_id", ()):
        named = node_named(uri.decode(errors="replace"), trust_domain)
        said = _node_said(context.invocation_metadata())
        if said is not None and named in ((said.role, None), (said.role, said.id)):
            return said
    return None


def _node_said(metadata: Any) -> NodeKey | None:
    """Which node a call says that it comes from."""
    name = dict(metadata or ()).get(NODE_KEY)
    try:
        return node_key_of(name) if isinstance(name, str) else None
    except Rejected:
        return None
