"""Small worlds of quotas for properties, and Kafka's way of choosing them, after its text."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st
from libs.common.tests.kit.access import ALICE, BOB

from headrace_common.core.quotas.entities import DEFAULT, Clients, Entity, Prefix
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
