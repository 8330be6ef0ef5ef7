"""
The call of ``headrace.aio.Producer`` that makes it the only writer of a partition. The class for threads is made from
this one, see ``tools/sync_faces.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.records import RecordMetadata

if TYPE_CHECKING:
    from headrace.aio._engine import ProducerEngine


class FenceCalls:
    """A part of ``headrace.aio.Producer``."""

    _engine: ProducerEngine

    def _start(self) -> None:
        raise NotImplementedError

    async def fence(self, topic: str, partition: int, token: int) -> RecordMetadata:
        """
        Take a partition over: from now on its leader refuses whatever other writers send under another token, also
        what they sent long ago and comes late.

        Appends a record that sets the partition's fencing token and that no reader sees, and waits until it is
        committed, whatever ``acks`` says. In the log it is behind all that this producer sent there before the call.
        What it sends there after the call carries the token; what others of its threads or tasks send during the call
        may or may not. That lasts until a higher token is set, here or by another writer: no change of leaders ends
        it. It belongs to no transaction, and may be called in one or outside. Waits up to ``max_block_ms`` for
        metadata, then up to ``delivery_timeout_ms``.

        Batches without a token pass as before, unless the topic has ``fencing.required``: all its writers must fence.

        Args:
            token: 1 to 2**63 - 1, above each that was set before. It must be of one writer alone: another that sets
                the same is taken for the same. Take it from what gives out the work, not from a clock.

        Returns:
            Where the token stands, also if it was set before, by an attempt whose answer was lost or another call with
            the same token; if the log does not reach back so far any more, the offset before its start. Whoever needs
            what earlier writers have left reads to the end that the log has after the call, and at least to this
            offset: a reader may still ask a leader that was deposed.

        Raises:
            FencedWriter: another writer has set a higher token. Here and where a batch is refused for that: what this
                producer sends to the partition fails at once with the same error, until a call with a higher token
                succeeds. Other partitions go on. A batch that may be written, as an attempt before had no clear answer,
                fails as ``UnknownOutcome``.
            DeliveryTimedOut: it may be set. This producer writes nothing there until a call succeeds; the same token
                may be given again. The same holds after any other failure that comes from a broker.
            UnknownTopicOrPartition: there is no such partition.
            Rejected: it cannot be a token, or is below one that this producer has asked for there; the topic is the
                system's; or ``acks`` is 0. Nothing has changed.
            ClientClosed: the producer is closed.

        ::

            >>> async def main():
            ...     async with aio.Producer(bootstrap) as producer:
            ...         print((await producer.fence("flights", 0, 7)).offset)
            ...         delivery = await producer.send("flights", b"only I write here", partition=0)
            ...         print((await delivery).offset)
            >>> asyncio.run(main())
            0
            1
        """
        self._start()
        self._engine.intake.check_alive()
        return await self._engine.fence(topic, partition, token)
