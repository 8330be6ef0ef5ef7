"""
Decides how a process connects to the services of a cluster: all channels, of asyncio and of threads, are opened here.

Called by the SDK, the command and the services. ``Security`` says whom a process trusts, and what it shows of itself to
whoever it calls: certificates, for which gRPC has no reload, so that new ones mean new channels; and metadata, which a
thin channel adds to each call. gRPC's own call credentials refuse plain connections and cost half a
millisecond per unary call; its interceptors cost a task per call. Without metadata nothing lies between stub and gRPC.
Connections to etcd are no connections to a service; the controller has its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from weakref import WeakValueDictionary

import grpc
import grpc.aio

from headrace_common.rpc.credentials import Pem, of_channel
from headrace_common.rpc.library import library, opening
from headrace_common.rpc.options import RECONNECT_MS_MAX, Options, channel_options

Metadata = tuple[tuple[str, str | bytes], ...]

Address = TypeVar("Address", bound=Hashable)
Opened = TypeVar("Opened", grpc.aio.Channel, grpc.Channel)

GRACE_MS: Final = 600_000.0
"""How long calls on channels with old certificates may take."""


class Certificates:
    """
    What a process shows and trusts, while that changes: channels that are opened have the newest, and pools that have
    others let them go. Any thread may read; one event loop renews, that of the pools.
    """

    def __init__(self, pem: Pem) -> None:
        self.pem = pem
        """The newest."""
        self._pools: WeakValueDictionary[int, Channels[Any]] = WeakValueDictionary()  # a mapping has no hash

    def follow(self, pool: Channels[Any]) -> None:
        """Have ``pool``, which was made with these, hear of new ones for as long as it is there."""
        self._pools[id(pool)] = pool

    async def renew(self, pem: Pem, *, grace_ms: float = GRACE_MS) -> None:
        """Show and trust ``pem`` from now on; see ``Channels.renew``. Returns when the last old channel is closed."""
        self.pem = pem
        closings = [closing for pool in list(self._pools.values()) for closing in pool.retire(grace_ms)]
        await _close_all(closings)


@dataclass(frozen=True, slots=True)
class Security:
    """Whom a process trusts, and how it shows who it is. Any thread."""

    metadata: Callable[[str], Metadata] | None = None
    """
    Asked at the start of each call, with the ``host:port`` it goes to, for what is added to the call's own metadata.
    What it raises the call raises. None: nothing is added.
    """
    pem: Pem | Certificates | None = None
    """With what to speak TLS. None: in plain text."""
    server_name: Callable[[str], str | None] | None = None
    """
    Asked when a channel to ``host:port`` is opened for what the certificate there has to name; None, or its answer: the
    host that is connected to.
    """

    @property
    def newest(self) -> Pem | None:
        """What a channel that is opened now shows and trusts."""
        return self.pem.pem if isinstance(self.pem, Certificates) else self.pem

    def name_of(self, target: str) -> str | None:
        """See ``server_name``."""
        return None if self.server_name is None else self.server_name(target)


PLAIN: Final = Security()
"""Shows nothing, in plain text."""


def open_channel(
    target: str,
    security: Security = PLAIN,
    *,
    own_connection: bool = False,
    reconnect_ms_max: int = RECONNECT_MS_MAX,
) -> grpc.aio.Channel:
    """
    A channel to ``host:port``; it connects with its first call and again after every failure.

    Args:
        own_connection: do not share a connection with other channels of this process to the same address.
        reconnect_ms_max: longest pause between two attempts to connect.
    """
    options = channel_options(
        own_connection=own_connection, reconnect_ms_max=reconnect_ms_max, server_name=security.name_of(target)
    )
    with opening() as grpc_here:
        channel: grpc.aio.Channel = _dial(grpc_here, grpc_here.aio, target, security, options)
    return channel if security.metadata is None else _ChannelWithMetadata(channel, target, security.metadata)


def open_sync_channel(
    target: str,
    security: Security = PLAIN,
    *,
    own_connection: bool = False,
    reconnect_ms_max: int = RECONNECT_MS_MAX,
) -> grpc.Channel:
    """The same for a thread without an event loop."""
    options = channel_options(
        own_connection=own_connection, reconnect_ms_max=reconnect_ms_max, server_name=security.name_of(target)
    )
    with opening() as grpc_here:
        channel: grpc.Channel = _dial(grpc_here, grpc_here, target, security, options)
    return channel if security.metadata is None else _SyncChannelWithMetadata(channel, target, security.metadata)


def _dial(library: Any, kind: Any, target: str, security: Security, options: Options) -> Any:
    """A channel of ``kind``, which is ``library`` or its part for asyncio."""
    pem = security.newest
    if pem is None:
        return kind.insecure_channel(target, options=options)
    return kind.secure_channel(target, of_channel(library, pem), options=options)


class _Pool(Mapping[Address, Opened]):
    """One channel per address, opened when it is first asked for. As a mapping: the channels that are open."""

    def __init__(
        self, security: Security = PLAIN, *, own_connection: bool = False, reconnect_ms_max: int = RECONNECT_MS_MAX
    ) -> None:
        self.context = copy_context()
        """Of its maker: it says where connections lead, whoever opens them."""
        self._security = security
        self._own_connection = own_connection
        self._reconnect_ms_max = reconnect_ms_max
        self._opened: dict[Address, Opened] = {}

    def to(self, address: Address) -> Opened:
        """The channel to ``address``, whose text is ``host:port``."""
        channel = self._opened.pop(address, None)
        if channel is None:
            channel = self.context.run(self._open, str(address))
        self._opened[address] = channel  # the last in order is the last used
        return channel

    def _open(self, target: str) -> Opened:
        raise NotImplementedError

    def __getitem__(self, address: Address) -> Opened:
        return self._opened[address]

    def __iter__(self) -> Iterator[Address]:
        return iter(self._opened)

    def __len__(self) -> int:
        return len(self._opened)


class Channels(_Pool[Address, grpc.aio.Channel]):
    """Channels of one event loop. Calls that are under way when theirs is closed fail, their outcome unknown."""

    def __init__(
        self, security: Security = PLAIN, *, own_connection: bool = False, reconnect_ms_max: int = RECONNECT_MS_MAX
    ) -> None:
        super().__init__(security, own_connection=own_connection, reconnect_ms_max=reconnect_ms_max)
        if isinstance(security.pem, Certificates):
            security.pem.follow(self)

    def _open(self, target: str) -> grpc.aio.Channel:
        return open_channel(
            target,
            self._security,
            own_connection=self._own_connection,
            reconnect_ms_max=self._reconnect_ms_max,
        )

    def renew(self, security: Security | None = None, *, grace_ms: float = GRACE_MS) -> Coroutine[Any, Any, None]:
        """
        Open channels with ``security`` from now on; None: with what that of now has become. Those that are open begin
        no new call, and close when their calls have ended, or after ``grace_ms``; 0 where they were opened with what is
        not trusted any more. What is to be awaited returns then; it holds at once.
        """
        self._security = security or self._security
        retired = list(self._opened.values())
        self._opened.clear()

        async def close() -> None:
            await _close_all([channel.close(grace_ms / 1_000) for channel in retired])

        return close()

    def retire(self, grace_ms: float) -> list[Coroutine[Any, Any, None]]:
        """From now on channels are opened anew; what closes those that are open, to be awaited."""
        closings = [channel.close(grace_ms / 1_000) for channel in self._opened.values()]
        self._opened.clear()
        return closings

    async def keep(self, known: Collection[Address]) -> None:
        """Close the channels to all other addresses: nobody is there any more."""
        for address in [address for address in self._opened if address not in known]:
            await self.drop(address)

    async def trim(self, channels_max: int) -> None:
        """Close those that were not used for longest, until ``channels_max`` are left."""
        while len(self._opened) > channels_max:
            await self.drop(next(iter(self._opened)))

    async def drop(self, address: Address) -> None:
        """Close the channel to ``address`` if there is one."""
        channel = self._opened.pop(address, None)
        if channel is not None:
            with suppress(library().aio.UsageError):  # it was being closed
                await channel.close()

    async def close(self) -> None:
        await self.trim(0)


async def _close_all(closings: Sequence[Coroutine[Any, Any, None]]) -> None:
    for closed in await asyncio.gather(*closings, return_exceptions=True):
        if isinstance(closed, BaseException) and not isinstance(closed, library().aio.UsageError):
            raise closed  # UsageError: it was being closed


class SyncChannels(_Pool[Address, grpc.Channel]):
    """Channels of a thread that may block; one thread at a time."""

    _opened_with: Pem | None = None

    def to(self, address: Address) -> grpc.Channel:
        """The channel to ``address``; with new certificates all are opened anew: the thread has no call there."""
        if self._opened_with is not self._security.newest:
            self.close()
            self._opened_with = self._security.newest
        return super().to(address)

    def _open(self, target: str) -> grpc.Channel:
        return open_sync_channel(
            target,
            self._security,
            own_connection=self._own_connection,
            reconnect_ms_max=self._reconnect_ms_max,
        )

    def renew(self, security: Security) -> None:
        """Open channels with ``security`` from now on. Those that are open are closed: the thread has no call there."""
        self._security = security
        self.close()

    def close(self) -> None:
        while self._opened:
            self._opened.popitem()[1].close()


class _CallWithMetadata:
    """One RPC of a stub, of whichever kind; its callers pass metadata by name or not at all."""

    def __init__(self, call: Any, added: Callable[[], Metadata]) -> None:
        self._call = call
        self._added = added

    def __call__(self, *args: Any, metadata: Any = None, **options: Any) -> Any:
        return self._call(*args, metadata=self._all(metadata), **options)

    def with_call(self, *args: Any, metadata: Any = None, **options: Any) -> Any:
        return self._call.with_call(*args, metadata=self._all(metadata), **options)

    def future(self, *args: Any, metadata: Any = None, **options: Any) -> Any:
        return self._call.future(*args, metadata=self._all(metadata), **options)

    def _all(self, metadata: Any) -> Any:
        return (*(metadata or ()), *self._added())


class _Kinds:
    """The four kinds of calls of a channel, with metadata."""

    def __init__(self, channel: Any, target: str, metadata: Callable[[str], Metadata]) -> None:
        self._channel = channel
        self._added: Callable[[], Metadata] = lambda: metadata(target)

    def unary_unary(self, *args: Any, **options: Any) -> Any:
        return _CallWithMetadata(self._channel.unary_unary(*args, **options), self._added)

    def unary_stream(self, *args: Any, **options: Any) -> Any:
        return _CallWithMetadata(self._channel.unary_stream(*args, **options), self._added)

    def stream_unary(self, *args: Any, **options: Any) -> Any:
        return _CallWithMetadata(self._channel.stream_unary(*args, **options), self._added)

    def stream_stream(self, *args: Any, **options: Any) -> Any:
        return _CallWithMetadata(self._channel.stream_stream(*args, **options), self._added)


class _ChannelWithMetadata(_Kinds, grpc.aio.Channel):
    async def __aenter__(self) -> Self:
        await self._channel.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        ended: bool | None = await self._channel.__aexit__(kind, error, trace)
        return ended

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        state: grpc.ChannelConnectivity = self._channel.get_state(try_to_connect)
        return state

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._channel.channel_ready()


class _SyncChannelWithMetadata(_Kinds, grpc.Channel):
    def __enter__(self) -> Self:
        self._channel.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        ended: bool | None = self._channel.__exit__(kind, error, trace)
        return ended

    def close(self) -> None:
        self._channel.close()

    def subscribe(self, callback: Callable[[grpc.ChannelConnectivity], None], try_to_connect: bool = False) -> None:
        self._channel.subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Callable[[grpc.ChannelConnectivity], None]) -> None:
        self._channel.unsubscribe(callback)
