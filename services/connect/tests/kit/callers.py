"""A cluster that knows who may do what with connectors, and makes tickets, as brokers do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from services.connect.tests.kit.twin import ME

from headrace.ticket_types import AccessQuestion, AnnouncedChange
from headrace_common.core.access.tickets import TICKET_BYTES
from headrace_common.core.errors import AuditUnavailable, ClusterAuthorizationFailed, HeadraceError, Unauthenticated
from headrace_common.core.secret import Secret

IN_GROUP: Final = AccessQuestion("READ", "GROUP", "connect-cluster")


class Made(NamedTuple):
    """A ticket."""

    owner: str
    endpoint: str
    purpose: str
    questions: frozenset[AccessQuestion]


@dataclass
class TwinCallers:
    """Satisfies ``Callers``. Credentials are ``hrk_NAME``. It is open until a test closes it."""

    closed: bool = False
    raises: HeadraceError | None = None
    rights: dict[str, set[AccessQuestion]] = field(default_factory=dict)
    """Of each name; WORKER's are the worker's own."""
    tickets: dict[bytes, Made] = field(default_factory=dict)
    asked: list[tuple[str, tuple[AccessQuestion, ...]]] = field(default_factory=list)
    announced: list[tuple[str, AnnouncedChange]] = field(default_factory=list)
    """What is in the audit."""
    audit_fails: bool = False
    answers: asyncio.Event = field(default_factory=asyncio.Event)
    """While it is not set brokers do not answer about ``hrk_slow``."""

    def allow(self, name: str, connector: str, *operations: str, type: str = "CONNECTOR") -> None:
        """From now on; somebody who may nothing is known too."""
        mine = self.rights.setdefault(name, set())
        mine |= {AccessQuestion(operation, type, connector) for operation in operations}

    def ticket(self, owner: str, endpoint: str, purpose: str, *questions: AccessQuestion) -> bytes:
        """One that was made."""
        text = len(self.tickets).to_bytes(TICKET_BYTES, "big")
        self.tickets[text] = Made(owner, endpoint, purpose, frozenset(questions))
        return text

    def _may(self, name: str, asked: AccessQuestion) -> bool:
        mine = self.rights[name]
        return asked in mine if asked.name else any(one[:2] == asked[:2] for one in mine)

    def _refusals(self, name: str, questions: Sequence[AccessQuestion]) -> list[str]:
        if name not in self.rights:
            raise Unauthenticated(f"there is no API key {name}")
        return ["" if self._may(name, one) else f"User:{name} may not {' '.join(one)}" for one in questions]

    async def let_everybody(self) -> bool:
        if self.raises is not None:
            raise self.raises
        return not self.closed

    async def ask_by_bearer(
        self, bearer: Secret, questions: Sequence[AccessQuestion], change: AnnouncedChange | None = None
    ) -> Sequence[str]:
        name = bearer.reveal().removeprefix("hrk_")
        self.asked.append((name, tuple(questions)))
        if name == "slow":
            await self.answers.wait()
        refusals = self._refusals(name, questions)
        if change is not None and not all(refusals):
            if self.audit_fails:
                raise AuditUnavailable("the audit cannot be written")
            self.announced.append((name, change))
        return refusals

    async def ask_by_ticket(self, ticket: bytes, purpose: str, questions: Sequence[AccessQuestion]) -> Sequence[str]:
        made = self.tickets.get(ticket)
        if made is None or (made.endpoint, made.purpose) != (ME, purpose):
            raise Unauthenticated("the ticket was made for another member, or is over")
        found = zip(questions, self._refusals(made.owner, questions), strict=True)
        return [refusal if one in made.questions else "the ticket is not for this" for one, refusal in found]

    async def is_worker(self, ticket: bytes, purpose: str) -> bool:
        return not any(await self.ask_by_ticket(ticket, purpose, [IN_GROUP]))

    async def make_ticket(
        self, bearer: Secret, endpoint: str, purpose: str, questions: Sequence[AccessQuestion]
    ) -> bytes:
        name = bearer.reveal().removeprefix("hrk_")
        refusals = self._refusals(name, questions)
        allowed = [one for one, refusal in zip(questions, refusals, strict=True) if not refusal]
        if not allowed:
            raise ClusterAuthorizationFailed(refusals[0])
        return self.ticket(name, endpoint, purpose, *allowed)

    async def make_own_ticket(self, endpoint: str, purpose: str) -> bytes:
        return self.ticket("WORKER", endpoint, purpose, IN_GROUP)
