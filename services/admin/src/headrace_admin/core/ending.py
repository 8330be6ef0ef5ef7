"""Which nodes have a certificate that nears its end, or is over. ``verdict`` names them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace_common.core.image import NodeKey
from headrace_common.core.moments import iso_of
from headrace_common.core.served_certificates import Served, warns_from_ms

NAMED_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class Ending:
    """Nodes whose certificate, or its CA, ends at one time; of a role they often have one and the same."""

    not_after_ms: int
    """Unix time."""
    is_over: bool
    nodes: tuple[NodeKey, ...]


def find_ending(served: Mapping[NodeKey, Iterable[Served]], now_ms: float) -> tuple[Ending, ...]:
    """Those of whom to warn, the first end first."""
    ends: dict[int, set[NodeKey]] = {}
    for node, bundles in served.items():
        for one in bundles:
            end = min(one.not_after_ms, one.issuer.not_after_ms)
            if now_ms >= warns_from_ms(one.certificate.not_before_ms, end):
                ends.setdefault(end, set()).add(node)
    return tuple(Ending(end, now_ms > end, tuple(sorted(ends[end], key=str))) for end in sorted(ends))


def describe_ending(endings: Sequence[Ending]) -> list[str]:
    """Parts of a verdict: which node, and when."""
    parts = []
    for one in endings:
        named = ", ".join(map(str, one.nodes[:NAMED_MAX]))
        more = f" and {len(one.nodes) - NAMED_MAX} more" if len(one.nodes) > NAMED_MAX else ""
        when = f"{'ended' if one.is_over else 'ends'} {iso_of(one.not_after_ms)}"
        then = "who connects is refused" if one.is_over else "from then on who connects is refused"
        parts.append(f"the certificate of {named}{more} {when}, {then}; put another in its place (`headrace tls list`)")
    return parts
