"""
Connections to brokers and to other coordinators, shared by all shards: one channel per address, and on it one
``Produce`` stream. Decides nothing about logs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import grpc.aio

from headrace_common.core.errors import NetworkFailed, RequestTimedOut
from headrace_common.core.ids import Endpoint
from headrace_common.rpc.calls import CallTo
from headrace_common.rpc.channels import PLAIN, Channels, Security
from headrace_common.rpc.options import EAGER_RECONNECT_MS_MAX
from headrace_common.runtime.asking import AskingStreams
from headrace_common.runtime.clock import limit_ms
from headrace_common.runtime.tasks import TaskRunner
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1.broker_pb2_grpc import BrokerStub

if TYPE_CHECKING:
    from headrace_proto.v1.broker_pb2_grpc import BrokerAsyncStub

ANSWER_ALLOWANCE_MS: Final = 1_000
"""Beyond a request's own time: the way there and back."""
CALL_S_MAX: Final = 3.0


class BrokerConnections:
    """One for the process; one event loop."""

    def __init__(self, tasks: TaskRunner, security: Security = PLAIN) -> None:
        self._tasks = tasks
        self._channels: Channels[Endpoint] = Channels(security, reconnect_ms_max=EAGER_RECONNECT_MS_MAX)
        self._stubs: dict[Endpoint, tuple[grpc.aio.Channel, BrokerAsyncStub]] = {}
        self._streams: list[AskingStreams[Any, Any]] = []
        self._produce: AskingStreams[pb.ProduceRequest, pb.ProduceResponse] = self.streams(
            lambda at: self.stub(at).Produce(), "broker"
        )

    async def produce(self, at: Endpoint, entry: pb.ProducePartition, timeout_ms: int) -> pb.ProducePartitionResult:
        """
        Append one batch with acks=all; the broker's word on it, errors included.

        Raises:
            NetworkFailed, RequestTimedOut: it may have been appended, or may yet be.
        """
        request = pb.ProduceRequest(acks=-1, timeout_ms=timeout_ms, partitions=[entry])
        answer = await self._produce.ask(at, request, timeout_ms + ANSWER_ALLOWANCE_MS)
        if len(answer.partitions) != 1:
            raise NetworkFailed(f"the broker at {at} answered one batch with {len(answer.partitions)} results")
        return answer.partitions[0]

    async def fetch(self, at: Endpoint, request: pb.FetchRequest) -> pb.FetchResponse:
        """
        One answer, over a stream of its own.

        Raises:
            HeadraceError: there was none.
        """
        call: Any = self.stub(at).Fetch()
        try:
            async with limit_ms(CALL_S_MAX * 1_000 + request.max_wait_ms):
                with CallTo(f"the broker at {at}"):
                    await call.write(request)
                    answer = await call.read()
        except TimeoutError:
            raise RequestTimedOut(f"the broker at {at} did not answer a fetch in time") from None
        finally:
            call.cancel()
        if not isinstance(answer, pb.FetchResponse):
            raise NetworkFailed(f"the broker at {at} ended the fetch stream")
        return answer

    async def list_offsets(self, at: Endpoint, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        """
        Raises:
            HeadraceError: the call as a whole failed.
        """
        with CallTo(f"the broker at {at}"):
            answer = await self.stub(at).ListOffsets(request, timeout=CALL_S_MAX)
        if len(answer.partitions) != len(request.partitions):
            raise NetworkFailed(f"the broker at {at} left out offsets that were asked for")
        return answer

    async def init_producer_id(self, at: Endpoint) -> tuple[int, int]:
        """
        A new producer id and its epoch.

        Raises:
            HeadraceError: none was given.
        """
        with CallTo(f"the broker at {at}"):
            answer = await self.stub(at).InitProducerId(pb.InitProducerIdRequest(), timeout=CALL_S_MAX)
        return answer.producer_id, answer.producer_epoch

    def stub(self, at: Endpoint) -> BrokerAsyncStub:
        channel = self.channel(at)
        held = self._stubs.get(at)
        if held is None or held[0] is not channel:  # new certificates mean new channels
            held = self._stubs[at] = channel, BrokerStub(channel)
        return held[1]

    def streams(self, open_call: Callable[[Endpoint], Any], who: str) -> AskingStreams[Any, Any]:
        """Streams on these connections; see ``AskingStreams``."""
        streams: AskingStreams[Any, Any] = AskingStreams(open_call, who, self._tasks)
        self._streams.append(streams)
        return streams

    def channel(self, at: Endpoint) -> grpc.aio.Channel:
        """The connection to one process."""
        return self._channels.to(at)

    @property
    def addresses(self) -> set[Endpoint]:
        """Where there are connections to."""
        return set(self._channels)

    async def keep(self, known: set[Endpoint]) -> None:
        """Close the connections to all other addresses: those processes have moved or are gone."""
        for at in [at for at in self._channels if at not in known]:
            await self._drop(at)

    async def close(self) -> None:
        """Close everything; requests under way fail."""
        for at in list(self._channels):
            await self._drop(at)

    async def _drop(self, at: Endpoint) -> None:
        for streams in self._streams:
            streams.drop(at)
        self._stubs.pop(at, None)
        await self._channels.drop(at)
