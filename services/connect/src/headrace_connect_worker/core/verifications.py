"""
Decides how many verifications there are at one time, which may be begun, and what is retained of those that have ended.

Pure; ``engine.verifying`` has hosts carry them out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace_common.core.errors import Overloaded
from headrace_connect.core.progress import Progress
from headrace_connect_worker.core.herd import ConnectorState
from headrace_connect_worker.core.refusals import Conflict, NoSuchVerification

RUNNING_MAX: Final = 2
"""At one time, of all connectors; one of each."""
ENDED_MAX: Final = 16
"""That are retained with their results; of more the oldest are forgotten."""


@dataclass(slots=True, eq=False)
class Verification:
    """Of one connector, from its begin on."""

    id: str
    connector: str
    repair: bool
    began_ms: int
    """Since 1970."""
    progress: Progress = field(default_factory=Progress)
    result: Mapping[str, Any] | None = None
    """As ``headrace_connect.runtime.verifying`` gives it, when it has ended well."""
    error: Exception | None = None
    """Why it has ended without a result."""

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.result is None and self.error is None


class Verifications:
    """Of one worker, by id."""

    def __init__(self) -> None:
        self._all: dict[str, Verification] = {}
        """Those that were begun first are first."""

    def begin(self, id: str, connector: ConnectorState, now_ms: int, *, repair: bool) -> Verification:
        """
        A new one.

        Raises:
            Conflict: the connector has one that runs, or is not stopped and is to be repaired.
            Overloaded: as many run as may.
        """
        if repair and not connector.is_stopped:
            raise Conflict(
                f"stop {connector.name} before its target is repaired: PUT /connectors/{{name}}/stop does it"
            )
        running = [one for one in self._all.values() if one.is_running]
        for one in running:
            if one.connector == connector.name:
                raise Conflict(f"a verification of {connector.name} runs, {one.id}: wait for it, or delete it first")
        if len(running) >= RUNNING_MAX:
            named = " and ".join(one.connector for one in running)
            raise Overloaded(f"{len(running)} verifications at once are the most, and those of {named} run")
        begun = self._all[id] = Verification(id, connector.name, repair, now_ms)
        return begun

    def newest_first(self) -> list[Verification]:
        """Those that run, and the newest that have ended; the newest is first."""
        return list(reversed(self._all.values()))

    def find(self, connector: str, id: str) -> Verification:
        """
        One that runs, or has ended.

        Raises:
            NoSuchVerification: there is none.
        """
        found = self._all.get(id)
        if found is None or found.connector != connector:
            raise NoSuchVerification(
                f"{connector} has no verification {id[:80]!r}: it was deleted, {ENDED_MAX} others have ended since, or "
                "the worker that led has stopped. Begin another one"
            )
        return found

    def end(self, id: str, result: Mapping[str, Any] | None = None, error: Exception | None = None) -> None:
        """It has ended, with one of both; nothing where it has ended before, or was forgotten."""
        assert (result is None) != (error is None), "it has ended well or not"
        found = self._all.get(id)
        if found is None or not found.is_running:
            return
        found.result, found.error = result, error
        ended = [one.id for one in self._all.values() if not one.is_running]
        for old in ended[:-ENDED_MAX]:
            del self._all[old]

    def forget(self, id: str) -> None:
        """It was deleted."""
        self._all.pop(id, None)
