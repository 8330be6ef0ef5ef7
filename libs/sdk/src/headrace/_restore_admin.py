"""The part of ``headrace.AdminClient`` that looks after restored metadata; its asyncio twin does the work."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from headrace.admin_restore_types import RestoreInfo, StrayList
    from headrace.admin_types import TopicDescription
    from headrace.aio._restore_admin import RestoreAdmin as AsyncRestoreAdmin

T = TypeVar("T")


class RestoreAdmin:
    """
    Inherited by ``AdminClient``.

    After a restore of the cluster's metadata from a backup::

        >>> import headrace
        >>> admin = headrace.AdminClient()
        >>> admin.describe_restore() is None, admin.list_strays().topics
        (True, ())
        >>> admin.close()
    """

    _restores: AsyncRestoreAdmin

    def _wait(self, coro: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    def describe_restore(self) -> RestoreInfo | None:
        """The last restore of the metadata from a backup, and which brokers it waits for; None: there was none."""
        return self._wait(self._restores.describe_restore())

    def list_strays(self) -> StrayList:
        """Logs that brokers have and the metadata does not know. Every broker is asked for all it has."""
        return self._wait(self._restores.list_strays())

    def adopt_topic(
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
        adoption = self._restores.adopt_topic(topic_id, name, partitions=partitions, validate_only=validate_only)
        return self._wait(adoption)
