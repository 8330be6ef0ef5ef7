"""
The policy of one set of principals: all their grants, compiled so that a decision costs the same whatever their number.

A deny that matches outweighs every allow, so the order of grants does not count. For each type of resource there are a
dictionary of literal names and a sorted list of the names at which the prefixes that match change: a prefix ``p`` holds
from ``p`` to the first text after all that begin with ``p``, so a single binary search finds what all prefixes say.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from headrace_common.core.access.grants import Grant
from headrace_common.core.access.names import find_fault
from headrace_common.core.access.resources import (
    DENY_SHIFT,
    INTERNAL_PREFIX,
    RESOURCE_NAME_CHARS_MAX,
    Operation,
    Pattern,
    PatternKind,
    ResourceType,
)
from headrace_common.core.errors import ErrorCode, Rejected

GRANTS_PER_CALLER_MAX: Final = 20_000
"""Of a principal, its groups, and everyone of its type."""
_ANY, _LITERAL = PatternKind.ANY, PatternKind.LITERAL  # to look a member up takes as long as all the rest of a step
_NO_NAME: Final = chr(0x10FFFF)
"""Not printable, so no name begins with it."""
_DENIES: Final = -1 << DENY_SHIFT


@dataclass(frozen=True, slots=True)
class Table:
    """The grants on one type of resource, as bits of operations: allows below, denies above."""

    literals: dict[str, int]
    starts: list[str]
    """Ascending: where what prefixes say changes. A prefix that is in another one has its end here too."""
    wide: list[int]
    """What prefixes say from each start until the next."""
    outer: list[str]
    """The widest prefix at each start: of names behind it, which do not begin so, no prefix says anything."""
    every: int
    """What patterns for every name say."""

    def wide_bits(self, name: str) -> int:
        """What patterns that are not literal say of a name, or of all names that begin so and are not named further."""
        at = bisect_right(self.starts, name)
        bits = self.every
        if at and name.startswith(self.outer[at - 1]):
            bits |= self.wide[at - 1]
        return bits & _DENIES if name.startswith(INTERNAL_PREFIX) else bits

    def bits(self, name: str) -> int:
        """What all patterns say of a name."""
        return self.wide_bits(name) | self.literals.get(name, 0)

    def all_bits(self) -> Iterator[int]:
        """What is said of some name, for all that is said of any; literal names last, for they take longest."""
        yield self.every
        for bits in self.wide:
            yield self.every | bits
        yield from map(self.bits, self.literals)

    def bits_on(self, pattern: Pattern) -> int:
        """What is said of all names of a pattern that nothing says more of."""
        match pattern.kind:
            case PatternKind.LITERAL:
                return self.bits(pattern.name)
            case PatternKind.PREFIX:
                return self.wide_bits(pattern.name)
            case PatternKind.ANY:
                return self.every


def allows(bits: int, operation: Operation) -> bool:
    """The decision that bits of a name say: any deny, no; any allow, yes; else no."""
    return not bits & operation.denied_by and bits & operation.allowed_by != 0


@dataclass(frozen=True, slots=True)
class Policy:
    """All grants of one set of principals that call from one place."""

    tables: tuple[Table, ...]
    """By the slot of the type."""

    def decide(self, operation: Operation, type: ResourceType, name: str) -> bool:
        """Whether the grants allow it. A name that nothing can have is refused, whatever the patterns."""
        if find_fault(name, RESOURCE_NAME_CHARS_MAX) is not None:
            return False
        return allows(self.tables[type.slot].bits(name), operation)

    def decide_anywhere(self, operation: Operation, type: ResourceType) -> bool:
        """Whether there can be a name for which ``decide`` says yes."""
        return any(allows(bits, operation) for bits in self.tables[type.slot].all_bits())

    def bits_on(self, type: ResourceType, pattern: Pattern) -> int:
        return self.tables[type.slot].bits_on(pattern)


def compile_policy(grants: Iterable[Grant], host: str | None = None) -> Policy:
    """
    The policy of a caller with these grants, from ``host``.

    Raises:
        Rejected: there are more than ``GRANTS_PER_CALLER_MAX``.
    """
    literals: list[dict[str, int]] = [{} for _ in ResourceType]
    prefixes: list[dict[str, int]] = [{} for _ in ResourceType]
    every = [0] * len(ResourceType)
    count = 0
    for grant in grants:
        count += 1
        if grant.host is not None and grant.host != host:
            continue
        pattern, slot = grant.pattern, grant.type.slot
        kind = pattern.kind
        if kind is _ANY:
            every[slot] |= grant.bits
        else:
            names = literals[slot] if kind is _LITERAL else prefixes[slot]
            name = pattern.name
            names[name] = names.get(name, 0) | grant.bits
    if count > GRANTS_PER_CALLER_MAX:
        raise Rejected(
            f"{count} grants are for this caller and its groups; {GRANTS_PER_CALLER_MAX} is the most: use prefixes, "
            "or fewer groups",
            code=ErrorCode.POLICY_VIOLATION,
        )
    return Policy(tuple(map(_table, literals, prefixes, every)))


def _table(literals: dict[str, int], prefixes: dict[str, int], every: int) -> Table:
    table = Table(literals, [], [], [], every)
    starts, wide, outer = table.starts, table.wide, table.outer
    around: list[tuple[str, int]] = []  # the prefixes that ``inner`` is in, and what each says with those around it
    inner, bits, outermost = _NO_NAME, 0, ""
    for prefix in sorted(prefixes):
        while around and not prefix.startswith(inner):
            starts.append(_after(inner))
            inner, bits = around.pop()
            wide.append(bits)
            outer.append(outermost)
        if prefix.startswith(inner):
            around.append((inner, bits))
            inner, bits = prefix, bits | prefixes[prefix]
        else:
            inner = outermost = prefix
            bits = prefixes[prefix]
        starts.append(prefix)
        wide.append(bits)
        outer.append(outermost)
    while around:
        starts.append(_after(inner))
        inner, bits = around.pop()
        wide.append(bits)
        outer.append(outermost)
    return table


def _after(prefix: str) -> str:
    """The first text after all that begin with ``prefix``; names are printable, so the last code point is in none."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


NO_GRANTS: Final = compile_policy(())
"""The policy of somebody without grants."""
