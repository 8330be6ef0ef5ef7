"""Decides what a work group may be told; ``WorkGroup(**settings)`` of both twins reads its keyword arguments here."""

from __future__ import annotations

from dataclasses import dataclass

from headrace._core.group_messages import GroupSettings
from headrace.settings import INT_MAX, ClientSettings
from headrace_common.core.bounds import setting

NAME_LENGTH_MAX = 249


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSettings(ClientSettings):
    """Settings of a work group's member."""

    group_instance_id: str | None = None
    """Names this member for longer than its process: whoever joins with it puts out who has it, and begins from what
    that one had."""
    process_id: str | None = None
    """Names the process; standbys are on other processes than their item. None: one that no process has."""
    endpoint: str = ""
    """Where this member answers questions, ``host:port``; others find it in the group's description."""
    zone: str = ""
    """Standbys are in other zones than their item, where that is possible."""
    transactional_id_prefix: str | None = None
    """This member's producer has the transactional id ``<prefix>-<member id>``: whoever gets its items after it was put
    out is told that, and ends what it left open. None: it has none."""
    rebalance_timeout_ms: int = setting(45_000, low=1, high=INT_MAX)
    """How long this member may take to give up what was revoked, in ms; then it is put out."""
    default_api_timeout_ms: int = setting(60_000, low=1, high=INT_MAX)
    """How long the coordinator may be unreachable before calls raise, in ms."""

    def rules(self) -> list[str]:
        """What is wrong between fields, and of names."""
        wrong = []
        names = ("group_instance_id", "process_id", "endpoint", "zone", "transactional_id_prefix")
        for name in names:
            value = getattr(self, name)
            empty = value == "" and name not in {"endpoint", "zone"}
            if value is not None and (not isinstance(value, str) or len(value) > NAME_LENGTH_MAX or empty):
                wrong.append(f"{name} takes a text of at most {NAME_LENGTH_MAX} characters, not {value!r:.300}")
        if not wrong and self.transactional_id_prefix is not None and len(self.transactional_id_prefix) > 200:
            wrong.append("transactional_id_prefix has more than 200 characters; the member's id is added to it")
        return wrong

    def group(self, name: str) -> GroupSettings:
        """What the machine is made with."""
        return GroupSettings(
            group_id=name,
            instance_id=self.group_instance_id,
            retry_backoff_ms=max(1, self.retry_backoff_ms),
            retry_backoff_max_ms=max(1, self.retry_backoff_max_ms),
            api_timeout_ms=self.default_api_timeout_ms,
        )
