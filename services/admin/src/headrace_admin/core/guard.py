"""What of the cluster is less guarded than it can be. The verdict says so, however well all else is."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_common.core.access.principal import BREAKGLASS
from headrace_common.core.access.rows import Mode, View
from headrace_common.core.moments import iso_of


@dataclass(frozen=True, slots=True)
class Guard:
    """How the cluster is guarded."""

    mode: Mode = Mode.CLOSED
    breakglass: bool = False
    """``User:breakglass`` may do everything."""
    breakglass_until_ms: int | None = None
    """Unix time, by its newest key; None: no key says."""
    vouched_full: bool = False
    """See ``Configured.vouched_full``."""


GUARDED = Guard()


def guard_of(view: View) -> Guard:
    """How a cluster with these rows is guarded."""
    ends = [key.expires_ms for key in view.keys.values() if key.owner == BREAKGLASS and key.expires_ms is not None]
    return Guard(view.mode, BREAKGLASS in view.access.bindings, max(ends, default=None), view.vouched_full)


def describe_guard(guard: Guard) -> list[str]:
    """Parts of a verdict, the widest opening first; none: it is guarded as well as it can be."""
    parts = []
    if guard.mode is Mode.OPEN:
        parts.append(
            "it is open: whoever reaches it may do everything; `headrace access mode permissive` begins to close it"
        )
    if guard.mode is Mode.PERMISSIVE:
        parts.append(
            "it is permissive: what rules refuse is written down and done; `headrace access report` says what is left "
            "to do before `headrace access mode closed`"
        )
    if guard.breakglass:
        until = "" if guard.breakglass_until_ms is None else f" until {iso_of(guard.breakglass_until_ms)}"
        parts.append(
            f"break-glass is in use: {BREAKGLASS} may do everything{until}; "
            "`python -m headrace_controller.breakglass --end` on a controller's host ends it"
        )
    if guard.vouched_full:
        parts.append(
            "access_vouched is full: a broker that was broken into can make itself administrator; set it back to "
            "limited at the controllers once Kafka's tools are done"
        )
    return parts
