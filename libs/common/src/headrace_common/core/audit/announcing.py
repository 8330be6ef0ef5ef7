"""What the audit says itself of the starts of nodes: their keys, when they registered, and how many events they had."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from headrace_common.core.audit.canonical import read_line
from headrace_common.core.audit.chain import Start
from headrace_common.core.audit.events import Change
from headrace_common.core.audit.kinds import Kind
from headrace_common.core.audit.verification import Announced
from headrace_common.core.errors import Rejected
from headrace_common.core.node_rules import node_key_of

_PREFIX: Final = b'"kind":"node'
"""Few lines have it, so only few are read."""


def registration(start: Start, public_key: bytes) -> Change:
    """What the event of a registration says."""
    return Change({}, {"node": str(start.node), "start": start.id, "public": public_key.hex()})


def counted(events: Mapping[Start, int]) -> Change:
    """What the event of a count says: of each start, how many events it has said to have."""
    return Change({}, {f"{start.node} {start.id}": str(count) for start, count in events.items()})


def announced_in(lines: Iterable[bytes]) -> dict[Start, Announced]:
    """All starts that the events of controllers in ``lines`` tell of. What is no such event is passed over."""
    found: dict[Start, Announced] = {}
    counts: dict[Start, int] = {}
    for line in lines:
        if _PREFIX not in line:
            continue
        try:
            fields = read_line(line)
            values = fields["change"]["after"]["values"]
            if fields["kind"] == Kind.NODE_REGISTERED.value:
                start = Start(node_key_of(values["node"]), values["start"])
                found.setdefault(start, Announced(bytes.fromhex(values["public"]), fields["time"]))
            elif fields["kind"] == Kind.NODES_COUNTED.value:
                for start, count in _counts(values):
                    counts[start] = max(count, counts.get(start, 0))
        except (Rejected, KeyError, TypeError, ValueError):
            continue  # whoever verifies says so
    return {start: one._replace(events=counts.get(start, 0)) for start, one in found.items()}


def _counts(values: Mapping[str, Any]) -> Iterable[tuple[Start, int]]:
    for name, count in values.items():
        node, _, id = name.partition(" ")
        yield Start(node_key_of(node), id), int(count)
