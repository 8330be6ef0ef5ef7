"""Small worlds of quotas for properties, and Kafka's ways of counting and choosing them, after its text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from hypothesis import strategies as st
from libs.common.tests.kit.access import ALICE, BOB

from headrace_common.core.quotas.entities import DEFAULT, Clients, Entity, Ip, Prefix
from headrace_common.core.quotas.kinds import Quota, Rate
from headrace_common.core.quotas.state import Quotas, alter

USERS: Final = (str(ALICE), str(BOB), "ServiceAccount:ns/pod")
CLIENT_IDS: Final = ("app", "app/1", "100%", "é")
ENTITIES: Final[tuple[Entity, ...]] = (
    *(
        Clients(user, client_id)
        for user in (*USERS, DEFAULT, None)
        for client_id in (*CLIENT_IDS, DEFAULT, None)
        if (user, client_id) != (None, None)
    ),
    *map(Ip, ("10.0.0.1", "2001:db8::", DEFAULT)),
    *map(Prefix, ("o", "orders", "orders.", "a%2Fb/c")),
)


CHANGES: Final[tuple[tuple[Entity, dict[Quota, float]], ...]] = tuple(
    (entity, {quota: nth * 10 + 1 + step})
    for nth, entity in enumerate(ENTITIES)
    for step, quota in enumerate(sorted(entity.quotas, key=lambda quota: quota.value)[:4])
)
"""One quota of one entity, each with a value of its own."""
all_quotas: Final = st.lists(st.sampled_from(CHANGES), max_size=10).map(lambda batch: alter(Quotas(), batch))


def place_by_documentation(quotas: Quotas, rate: Rate, user: str, client_id: str) -> tuple[str, str, float] | None:
    """
    Who shares a quota, and its value, after the list in Kafka's documentation ("Quota Configuration"), with its path of
    each place; the name of a default is <default>.
    """
    paths = {}
    for entity, values in quotas.values.items():
        if isinstance(entity, Clients) and rate in values:
            path = "/config"
            for kind, name in (("users", entity.user), ("clients", entity.client_id)):
                if name is not None:
                    path += f"/{kind}/" + ("<default>" if name == DEFAULT else f"<{name}>")
            paths[path] = values[rate]
    for path, sharing in (
        (f"/config/users/<{user}>/clients/<{client_id}>", (user, client_id)),
        (f"/config/users/<{user}>/clients/<default>", (user, client_id)),
        (f"/config/users/<{user}>", (user, "")),
        (f"/config/users/<default>/clients/<{client_id}>", (user, client_id)),
        ("/config/users/<default>/clients/<default>", (user, client_id)),
        ("/config/users/<default>", (user, "")),
        (f"/config/clients/<{client_id}>", ("", client_id)),
        ("/config/clients/<default>", ("", client_id)),
    ):
        if path in paths:
            return *sharing, paths[path]
    return None


@dataclass
class _Sample:
    begun_ms: int
    last_ms: int
    value: float = 0


@dataclass
class KafkaRate:
    """A ring of one sample more than there are windows, looked through whole each time: as Kafka describes it."""

    samples_max: int = 11
    window_ms: int = 1_000
    ring: list[_Sample] = field(default_factory=list)
    current: int = 0

    def count(self, value: float, now_ms: int) -> None:
        if not self.ring:
            self.ring.append(_Sample(now_ms, now_ms))
        if now_ms - self.ring[self.current].begun_ms >= self.window_ms:
            self.current = (self.current + 1) % (self.samples_max + 1)
            if self.current == len(self.ring):
                self.ring.append(_Sample(now_ms, now_ms))
            self.ring[self.current] = _Sample(now_ms, now_ms)
        self.ring[self.current].value += value
        self.ring[self.current].last_ms = now_ms

    def wait_ms(self, quota: float, now_ms: int) -> int:
        for place, sample in enumerate(self.ring):
            if now_ms - sample.last_ms >= self.samples_max * self.window_ms:
                self.ring[place] = _Sample(now_ms, now_ms)
        width_ms = now_ms - min(sample.begun_ms for sample in self.ring)
        whole = width_ms // self.window_ms
        if whole < self.samples_max - 1:
            width_ms += (self.samples_max - 1 - whole) * self.window_ms
        observed = sum(sample.value for sample in self.ring) / (width_ms / 1_000)
        if observed <= quota:
            return 0
        return int((observed - quota) / quota * width_ms + 0.5)
