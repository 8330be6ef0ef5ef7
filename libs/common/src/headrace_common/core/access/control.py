"""
What a process answers when it asks whether a caller may: by the cluster's mode, by rules for people and programs, and
by a table for nodes.

A process has one ``Control``. Whatever lasts, such as a stream, holds the ``Rights`` of its caller and asks them anew
for each request: they are those of the newest generation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from headrace_common.core.access.decisions import Decisions
from headrace_common.core.access.explain import Reason, describe_source, explain
from headrace_common.core.access.names import WILDCARD
from headrace_common.core.access.observed import Observed, Report
from headrace_common.core.access.principal import ANONYMOUS, PrincipalType
from headrace_common.core.access.refusals import Question, Refusals, Remembered
from headrace_common.core.access.resources import CLUSTER_NAME, INTERNAL_PREFIX, Operation, ResourceType
from headrace_common.core.access.rows import Mode, View
from headrace_common.core.access.state import Caller
from headrace_common.core.errors import (
    ClusterAuthorizationFailed,
    Denied,
    GroupAuthorizationFailed,
    Rejected,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)
from headrace_common.core.image import Role
from headrace_common.core.node_rules import node_key_of

_SHOWN_CHARS_MAX: Final = 255
_ANY_NAME: Final = WILDCARD
"""Stands for the resource where any would do; none has it for a name."""
_SOME_NAME: Final = "NAME"
"""What stands for it in a line that a person is to complete."""
_ERRORS: Final[Mapping[ResourceType, type[Denied]]] = {
    ResourceType.TOPIC: TopicAuthorizationFailed,
    ResourceType.GROUP: GroupAuthorizationFailed,
    ResourceType.TRANSACTIONAL_ID: TransactionalIdAuthorizationFailed,
}
_INCLUDE_DESCRIBE: Final[Mapping[ResourceType, str]] = {
    ResourceType.TOPIC: " (allow read or write, if that is what it is for: both include describe)",
    ResourceType.GROUP: " (allow read, if it is to be a member: that includes describe)",
    ResourceType.TRANSACTIONAL_ID: " (allow write, if it is to begin transactions: that includes describe)",
}
"""Clients ask for these first to find out where something is: who is refused wants to do more with it."""
_OF_COORDINATORS: Final = frozenset({Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.FENCE})

Asked: TypeAlias = tuple[Operation, ResourceType, str]
"""One question: may it do this, on which resource?"""


class Control:
    """
    Decides by the newest ``View`` that it was given. One event loop.

    ``now_ms``: Unix time.
    """

    def __init__(self, now_ms: Callable[[], float] = lambda: 0.0) -> None:
        self.view = View()
        self.observed = Observed()
        """In mode permissive: what was done that will be refused. Where it is not open: which rights are used."""
        self.refusals = Refusals()
        """The latest refusals that were explained."""
        self.generation = 0
        """Another one means that a decision of before may be another one now. It is this process's own count: super
        users of the settings change without a generation of the rows."""
        self._decisions = Decisions(self.view.access)
        self._now_ms = now_ms
        self.on_refused: Callable[[Denied, Caller, Asked], None] = lambda error, caller, asked: None
        """Called with each refusal that is made here."""
        self.on_tolerated: Callable[[Caller, Asked], None] = lambda caller, asked: None
        """Called with each that mode permissive lets pass."""

    def renew(self, view: View) -> None:
        """Decide by this one from now on."""
        if view is not self.view:
            rises = view.mode is not self.view.mode and view.mode is not Mode.OPEN
            if rises and (view.mode is Mode.PERMISSIVE or self.observed.since_ms is None):
                self.observed.begin(int(self._now_ms()))
            self.view = view
            self.generation += 1
            self._decisions.renew(view.access)

    def ask_anew(self) -> None:
        """Whoever remembers a decision asks once more; so what lasts is seen to last."""
        self.generation += 1

    def report(self) -> Report:
        """What was seen in the last day, without the refusals that rules allow meanwhile."""
        return self.observed.report(self._still_refused, int(self._now_ms()))

    def _still_refused(self, caller: Caller, operation: Operation, type: ResourceType, name: str) -> bool:
        if name == _ANY_NAME:
            return not self.allows_anywhere(caller, operation, type)
        return not self.allows(caller, operation, type, name)

    def may(self, caller: Caller, operation: Operation, type: ResourceType, name: str) -> bool:
        """Whether it is done; in mode permissive also what is only going to be refused, which is written down."""
        if self.view.mode is Mode.OPEN:
            return True
        if self.allows(caller, operation, type, name):
            if caller.principal.type is not PrincipalType.NODE:
                self.observed.used(caller, operation, type, name, int(self._now_ms()))
            return True
        return self._tolerates(caller, operation, type, name)

    def may_anywhere(self, caller: Caller, operation: Operation, type: ResourceType) -> bool:
        """As ``may``, where the name does not matter: there may be one with which it may."""
        if self.view.mode is Mode.OPEN:
            return True
        return self.allows_anywhere(caller, operation, type) or self._tolerates(caller, operation, type, _ANY_NAME)

    def may_any(self, caller: Caller, asked: Sequence[Asked]) -> bool:
        """Whether it may do one of these; in mode permissive the last is what is written down."""
        allowed = next((one for one in asked[:-1] if self.allows(caller, *one)), asked[-1])
        return self.may(caller, *allowed)

    def shows(self, caller: Caller, operation: Operation, type: ResourceType, name: str) -> bool:
        """
        Whether a list has this for the caller. In mode permissive it has everything, and nothing is written down: who
        asks for a list asks for no name.
        """
        return self.view.mode is not Mode.CLOSED or self.allows(caller, operation, type, name)

    def _tolerates(self, caller: Caller, operation: Operation, type: ResourceType, name: str) -> bool:
        if self.view.mode is Mode.CLOSED:
            return False
        self.observed.refused(caller, operation, type, name, int(self._now_ms()))
        self.on_tolerated(caller, (operation, type, name))
        return True

    def allows(self, caller: Caller, operation: Operation, type: ResourceType, name: str) -> bool:
        """What rules and the table of nodes say, whatever the mode."""
        if caller.principal.type is PrincipalType.NODE:
            return node_may(caller.principal.name, operation, type, name)
        try:
            return self._decisions.decide(caller, operation, type, name)
        except Rejected:  # it has too many grants to decide by
            return False

    def allows_anywhere(self, caller: Caller, operation: Operation, type: ResourceType) -> bool:
        """What rules and the table of nodes say of any name, whatever the mode."""
        if caller.principal.type is PrincipalType.NODE:
            return node_may_anywhere(caller.principal.name, operation, type)
        try:
            return self._decisions.decide_anywhere(caller, operation, type)
        except Rejected:  # as above
            return False

    def refusal(
        self, caller: Caller, operation: Operation, type: ResourceType, name: str, *, explained: bool = True
    ) -> Denied:
        """
        What is said to who may not: who, what, on what, the id by which it is remembered, and the line that would
        allow it if nothing does.

        Args:
            explained: False: without the id and the line. To find that all grants of the caller are read.
        """
        what = f"may not {operation.value} {type.value} {name[:_SHOWN_CHARS_MAX]}".removesuffix(f" {CLUSTER_NAME}")
        error = self._explain(caller, operation, type, name, name, what) if explained else _refused(caller, type, what)
        self.on_refused(error, caller, (operation, type, name))
        return error

    def refusal_anywhere(self, caller: Caller, operation: Operation, type: ResourceType) -> Denied:
        """As ``refusal``, where the name does not matter."""
        what = f"may {operation.value} no {type.value}"
        error = self._explain(caller, operation, type, _SOME_NAME, _ANY_NAME, what)
        self.on_refused(error, caller, (operation, type, _ANY_NAME))
        return error

    def remembered(self, id: str) -> Remembered | None:
        """What is known here of the refusal with this id; None: nothing."""
        kept = self.refusals.get(id)
        if kept is None:
            return None
        (caller, operation, type, name), any_name = kept.question, kept.question.name == _ANY_NAME
        allowed = not self._still_refused(caller, operation, type, name)
        now = explain(self.view.access, caller, operation, type, _SOME_NAME if any_name else name)
        return Remembered(
            str(caller.principal),
            tuple(sorted(map(str, caller.groups))),
            caller.host or "",
            operation,
            type,
            name,
            caller.scope is not None,
            kept.why.reason.value,
            tuple(map(describe_source, kept.why.sources)),
            kept.times,
            allowed,
            "" if allowed or caller.principal == ANONYMOUS else now.line or "",
        )

    def _explain(
        self, caller: Caller, operation: Operation, type: ResourceType, name: str, asked: str, what: str
    ) -> Denied:
        """``name``: stands for the one that was ``asked`` for."""
        if caller.principal.type is PrincipalType.NODE:
            return _refused(caller, type, what)
        said = explain(self.view.access, caller, operation, type, name)
        question = Question(caller, operation, type, asked[:_SHOWN_CHARS_MAX])
        what = f"{what} (refusal {self.refusals.note(question, said, int(self._now_ms()))})"
        if caller.principal == ANONYMOUS:
            return _refused(caller, type, what)
        if said.reason is not Reason.NOTHING_ALLOWS:
            return _refused(caller, type, f"{what}: {said.reason.value}")
        wider = _INCLUDE_DESCRIBE.get(type, "") if operation is Operation.DESCRIBE else ""
        how = "" if said.line is None else f"; who may change rules allows it{wider} with: {said.line}"
        return _refused(caller, type, f"{what}{how}")


def _refused(caller: Caller, type: ResourceType, what: str) -> Denied:
    if caller.principal == ANONYMOUS:
        text = f"a caller without a credential {what}; show one, for example HEADRACE_API_KEY"
    else:
        text = f"{caller.principal} {what}"
    return _ERRORS.get(type, ClusterAuthorizationFailed)(text)


def node_may(name: str, operation: Operation, type: ResourceType, resource: str) -> bool:
    """
    What nodes may do of what clients do: coordinators keep their state in internal topics and ask where logs end, for
    the lag of groups; admin nodes look. What an admin node does for a caller it does with the caller's credential. All
    else is ``node_rules``.
    """
    role = name if name in _ROLES else node_key_of(name).role.value
    if role == Role.COORDINATOR.value:
        if type is not ResourceType.TOPIC:
            return False
        return operation is Operation.DESCRIBE or (
            operation in _OF_COORDINATORS and resource.startswith(INTERNAL_PREFIX)
        )
    return role == Role.ADMIN.value and operation in {Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS}


def node_may_anywhere(name: str, operation: Operation, type: ResourceType) -> bool:
    """As ``node_may``, where the resource does not matter: what they may with any, they may with an internal one."""
    return node_may(name, operation, type, INTERNAL_PREFIX)


_ROLES: Final = frozenset(role.value for role in Role)


@dataclass(frozen=True, slots=True)
class Rights:
    """What one caller may, always by the newest generation. Who asks again and again takes a ``right.Right`` of it."""

    control: Control
    caller: Caller

    @property
    def generation(self) -> int:
        """See ``Control.generation``."""
        return self.control.generation

    def may(self, operation: Operation, type: ResourceType, name: str) -> bool:
        """See ``Control.may``."""
        return self.control.may(self.caller, operation, type, name)

    def allows(self, operation: Operation, type: ResourceType, name: str = CLUSTER_NAME) -> bool:
        """See ``Control.allows``."""
        return self.control.allows(self.caller, operation, type, name)

    def may_any(self, *asked: Asked) -> bool:
        """See ``Control.may_any``."""
        return self.control.may_any(self.caller, asked)

    def shows(self, operation: Operation, type: ResourceType, name: str) -> bool:
        """See ``Control.shows``."""
        return self.control.shows(self.caller, operation, type, name)

    def refusal(self, operation: Operation, type: ResourceType, name: str, *, explained: bool = True) -> Denied:
        """See ``Control.refusal``."""
        return self.control.refusal(self.caller, operation, type, name, explained=explained)

    def check(self, operation: Operation, type: ResourceType, name: str = CLUSTER_NAME) -> None:
        """
        Raises:
            Denied: it may not.
        """
        if not self.may(operation, type, name):
            raise self.refusal(operation, type, name)

    def check_anywhere(self, operation: Operation, type: ResourceType) -> None:
        """
        As ``check``, where the name does not matter.

        Raises:
            Denied: there is none with which it may.
        """
        if not self.control.may_anywhere(self.caller, operation, type):
            raise self.control.refusal_anywhere(self.caller, operation, type)

    def check_any(self, *asked: Asked) -> None:
        """
        Raises:
            Denied: it may do none of these; the text tells of the last.
        """
        if not self.may_any(*asked):
            raise self.refusal(*asked[-1])


EVERYTHING: Final = Rights(Control(), Caller(ANONYMOUS))
"""Of everybody in an open cluster."""
