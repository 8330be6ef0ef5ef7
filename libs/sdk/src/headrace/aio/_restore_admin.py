"""The part of ``headrace.aio.AdminClient`` that looks after restored metadata and stray logs."""

from __future__ import annotations

from headrace.admin_restore_types import RestoreInfo, StrayList
from headrace.admin_types import TopicDescription
from headrace.aio._admin_calls import AdminCalls
from headrace.errors import Rejected, error_for
from headrace_proto.v1 import controller_pb2 as pb

_ID_BYTES = 16


class RestoreAdmin(AdminCalls):
    """Inherited by ``AdminClient``, which brings the calls."""

    async def describe_restore(self) -> RestoreInfo | None:
        """The last restore of the metadata from a backup, and which brokers it waits for; None: there was none."""
        request = pb.DescribeRestoreRequest()
        answer = await self._call(lambda stub, timeout: stub.DescribeRestore(request, timeout=timeout))
        return RestoreInfo.of(answer) if answer.HasField("restore") else None

    async def list_strays(self) -> StrayList:
        """Logs that brokers have and the metadata does not know. Every broker is asked for all it has."""
        request = pb.DescribeRestoreRequest(strays=True)
        answer = await self._call(lambda stub, timeout: stub.DescribeRestore(request, timeout=timeout), change=True)
        return StrayList.of(answer)

    async def adopt_topic(
        self, topic_id: bytes | str, name: str | None = None, *, partitions: int = 0, validate_only: bool = False
    ) -> TopicDescription:
        """
        Make a topic of stray logs; the longest of them lead.

        Args:
            topic_id: 16 bytes, or 32 hexadecimal digits, of one of ``list_strays``.
            name: None: the name that it had.
            partitions: 0: as many as brokers remember, or as there are logs.

        Raises:
            UnknownTopicId: no broker has a log of it.
            TopicAlreadyExists: it is no stray, or its name is taken: give another.
            MetadataUnavailable: a broker does not answer, and might have a longer log.
            Rejected: no broker knows its name, and none was given; or this is no topic id.
        """
        request = pb.AdoptTopicRequest(
            topic_id=_topic_id(topic_id), name=name, partition_count=partitions, validate_only=validate_only
        )
        answer = await self._call(lambda stub, timeout: stub.AdoptTopic(request, timeout=timeout), change=True)
        if answer.result.error:
            raise error_for(answer.result.error, answer.result.message)
        return TopicDescription.of(answer.result.topic)


def _topic_id(given: bytes | str) -> bytes:
    try:
        found = bytes.fromhex(given) if isinstance(given, str) else given
    except ValueError:
        found = b""
    if len(found) != _ID_BYTES:
        raise Rejected(f"a topic id has 16 bytes, or 32 hexadecimal digits; {given!r} is none, list_strays() has them")
    return found
