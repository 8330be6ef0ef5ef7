"""
What the part ``quotas`` of a file for ``headrace apply`` says, and what of it is not so yet. Pure; nothing is ever
taken away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace_common.core.errors import Rejected

Section = Callable[[Any, str, set[str]], dict[str, Any]]
"""Of a value, where it is and its keys: the value. Raises what the whole file is refused with."""
Quotas = Mapping[str, Mapping[str, float]]
"""Values by the names of quotas, by entity."""


def parse_quotas(value: Any, section: Section) -> Quotas:
    """
    Raises:
        Rejected: something of it cannot be; the text says where.
    """
    if not isinstance(value, list):
        raise Rejected("quotas takes a list")
    found: dict[str, Mapping[str, float]] = {}
    for number, one in enumerate(value):
        where = f"quotas[{number}]"
        given = section(one, where, {"entity", "limits"})
        try:
            entity, limits = _entity(given)
        except Rejected as error:
            raise Rejected(f"{where}: {error}") from None
        if entity in found:
            raise Rejected(f"quotas has {entity} twice")
        found[entity] = limits
    return found


def differing_quotas(wanted: Quotas, present: Quotas) -> Quotas:
    """What is to be set; of what is not named nothing."""
    differing = {
        entity: {name: value for name, value in limits.items() if present.get(entity, {}).get(name) != value}
        for entity, limits in wanted.items()
    }
    return {entity: limits for entity, limits in differing.items() if limits}


def _entity(given: dict[str, Any]) -> tuple[str, Mapping[str, float]]:
    from headrace_common.core.quotas.entities import parse_entity
    from headrace_common.core.quotas.kinds import check_value, quota_named

    text, limits = given.get("entity"), given.get("limits")
    if not isinstance(text, str) or not isinstance(limits, dict) or not limits:
        raise Rejected("it needs an entity, as users/User:alice, and limits, as {producer_byte_rate: 1048576}")
    entity, found = parse_entity(text), {}
    for name, value in limits.items():
        quota = quota_named(str(name))
        if quota not in entity.quotas:
            raise Rejected(f"{text} has no {name}, but {', '.join(sorted(one.value for one in entity.quotas))}")
        found[quota.value] = check_value(quota, value)
    return text, found
