"""
What a process has refused lately, each by a short id, which stands in the text of the refusal.

The id says what was refused to whom: the same refusal has the same one at every node, whenever it is. It is worth
nothing to who has it: a node tells what it remembers to those who may know of the principal.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, NamedTuple

from headrace_common.core.access.explain import Explanation
from headrace_common.core.access.observed import Times
from headrace_common.core.access.principal import Principal
from headrace_common.core.access.resources import Operation, ResourceType
from headrace_common.core.access.state import Caller
from headrace_common.core.errors import Rejected

REFUSALS_MAX: Final = 2_000
PER_PRINCIPAL_MAX: Final = 200
"""Who asks for much that it may not makes a process forget its own refusals, not those of others."""
SOURCES_MAX: Final = 20
ID_CHARS: Final = 10
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
"""Without letters that look like others."""


class Question(NamedTuple):
    """What somebody asked for."""

    caller: Caller
    operation: Operation
    type: ResourceType
    name: str
    """``*``: any would do."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A refusal, why it was one, and when."""

    question: Question
    why: Explanation
    """Its first sources; of no remedy."""
    times: Times


@dataclass(frozen=True, slots=True)
class Remembered:
    """What one process tells of a refusal, in words."""

    principal: str
    groups: tuple[str, ...]
    host: str
    """Empty: not known."""
    operation: Operation
    type: ResourceType
    name: str
    narrowed: bool
    """Its key is for some things only."""
    reason: str
    """What decided, as the end of a sentence."""
    sources: tuple[str, ...]
    """The rules and roles that said something, in order; at most ``SOURCES_MAX``."""
    times: Times
    allowed: bool
    """Rules allow it meanwhile."""
    remedy: str
    """A command that would allow it now. Empty: it is allowed, or none would."""


def refusal_id(question: Question) -> str:
    """``ID_CHARS`` characters; two of a million refusals have the same one once in 2,000 times."""
    caller = question.caller
    scope = None if caller.scope is None else sorted(map(str, caller.scope.grants))
    parts = (
        str(caller.principal),
        sorted(map(str, caller.groups)),
        caller.host,
        scope,
        caller.vouched,
        question.operation.value,
        question.type.value,
        question.name,
    )
    digest = int.from_bytes(sha256(ascii(parts).encode()).digest()[:8], "big")
    return "".join(_ALPHABET[digest >> 5 * place & 31] for place in range(ID_CHARS))


def check_id(text: str) -> str:
    """
    The id that a person has typed.

    Raises:
        Rejected: it can be none.
    """
    id = text.strip().lower()
    if len(id) != ID_CHARS or not set(id) <= set(_ALPHABET):
        raise Rejected(f"{text[:80]!r} is no id of a refusal: its text has one of {ID_CHARS} letters and digits")
    return id


class Refusals:
    """The latest, in memory alone; one event loop."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._of: dict[Principal, OrderedDict[str, None]] = {}

    def note(self, question: Question, why: Explanation, now_ms: int) -> str:
        """Remember this one; its id. ``now_ms``: Unix time."""
        id, principal = refusal_id(question), question.caller.principal
        known = self._kept.pop(id, None)
        own = self._of.setdefault(principal, OrderedDict())
        own.pop(id, None)
        if known is None:
            if len(own) >= PER_PRINCIPAL_MAX:
                self._drop(next(iter(own)))
            elif len(self._kept) >= REFUSALS_MAX:
                self._drop(next(iter(self._kept)))
        times = Times(now_ms, now_ms) if known is None else known.times.and_(Times(now_ms, now_ms))
        self._kept[id] = Kept(question, Explanation(False, why.reason, why.sources[:SOURCES_MAX]), times)
        self._of.setdefault(principal, own)[id] = None
        return id

    def get(self, id: str) -> Kept | None:
        """None: it is not remembered."""
        return self._kept.get(id)

    def __len__(self) -> int:
        return len(self._kept)

    def _drop(self, id: str) -> None:
        principal = self._kept.pop(id).question.caller.principal
        own = self._of[principal]
        del own[id]
        if not own:
            del self._of[principal]
