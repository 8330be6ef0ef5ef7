"""
What the part ``access`` of a file for ``headrace apply`` says, and what of it is not so yet. Pure; nothing is ever
taken away: the cluster does not keep who made a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from headrace_common.core.errors import Rejected

if TYPE_CHECKING:
    from headrace.admin_access_types import AccessDescription
    from headrace_common.core.access.changes import Item

Section = Callable[[Any, str, set[str]], dict[str, Any]]
"""Of a value, where it is and its keys: the value. Raises what the whole file is refused with."""


def parse_access(value: Any, section: Section) -> tuple[Item, ...]:
    """
    Roles first, which bindings need.

    Raises:
        Rejected: something of it cannot be; the text says where.
    """
    fields = section(value, "access", {"roles", "bindings", "rules"})
    made = [
        *_each(fields, "roles", {"name", "gives"}, _role, section),
        *_each(fields, "bindings", {"principal", "role", "name", "resources"}, _binding, section),
        *_each(fields, "rules", {"principal", "allow", "deny", "type", "pattern", "host"}, _rule, section),
    ]
    return tuple(made)


def missing_access(wanted: Iterable[Item], present: AccessDescription) -> list[Item]:
    """What is not so yet, in its order."""
    there = set(map(str, _there(present)))
    return [item for item in wanted if str(_Said(item)) not in there]


class _Said:
    """An item as text, which says all of it; roles hold mappings, which no set takes."""

    def __init__(self, item: Item) -> None:
        self._item = item

    def __str__(self) -> str:
        from headrace_common.core.access.changes import Rule
        from headrace_common.core.access.roles import Binding, Role

        match self._item:
            case Rule(grantee, grant):
                return f"{grantee} {grant}"
            case Binding(grantee):
                return f"{grantee} {self._item}"
            case Role(name, operations):
                return f"role {name}: {sorted((type.value, int(some)) for type, some in operations.items())}"
            case other:
                return str(other)


def _there(present: AccessDescription) -> Iterator[_Said]:
    from headrace import access

    for rule in present.rules:
        make = access.deny if rule.grant.deny else access.allow
        yield _Said(
            make(rule.principal, rule.grant.operations, rule.grant.type, rule.grant.pattern, host=rule.grant.host)
        )
    for bound in present.bindings:
        yield _Said(access.bind(bound.principal, bound.role, on=[(on.type, on.pattern) for on in bound.targets]))
    for role in present.roles:
        if role.operations:
            yield _Said(access.role(role.name, role.operations))


def say(item: Item) -> str:
    """For people: what is made so."""
    return str(_Said(item))


def _each(
    fields: dict[str, Any], name: str, keys: set[str], make: Callable[[dict[str, Any]], Item], section: Section
) -> Iterator[Item]:
    listed = [] if fields.get(name) is None else fields[name]
    if not isinstance(listed, list):
        raise Rejected(f"access.{name} takes a list")
    for number, one in enumerate(listed):
        where = f"access.{name}[{number}]"
        given = section(one, where, keys)
        try:
            yield make(given)
        except KeyError as missing:
            raise Rejected(f"{where} needs {missing.args[0]}") from None
        except Rejected as error:
            raise Rejected(f"{where}: {error}") from None


def _role(given: dict[str, Any]) -> Item:
    from headrace import access

    gives = given["gives"]
    if not isinstance(gives, dict):
        raise Rejected("gives takes an object, as {topic: [read, describe]}")
    return access.role(_text(given, "name"), {type: _words(gives, type) for type in gives})


def _binding(given: dict[str, Any]) -> Item:
    from headrace import access

    resources = {} if given.get("resources") is None else given["resources"]
    if not isinstance(resources, dict):
        raise Rejected("resources takes an object, as {topic: [orders, 'bills*']}")
    targets = [(type, pattern) for type in resources for pattern in _words(resources, type)]
    name = None if given.get("name") is None else _text(given, "name")
    return access.bind(_text(given, "principal"), _text(given, "role"), name, on=targets)


def _rule(given: dict[str, Any]) -> Item:
    from headrace import access

    if ("allow" in given) == ("deny" in given):
        raise Rejected("it needs allow or deny, a list of operations")
    effect = "allow" if "allow" in given else "deny"
    make = access.allow if effect == "allow" else access.deny
    host = None if given.get("host") is None else _text(given, "host")
    pattern = () if given.get("pattern") is None else (_text(given, "pattern"),)
    return make(_text(given, "principal"), _words(given, effect), _text(given, "type"), *pattern, host=host)


def _text(given: dict[str, Any], name: str) -> str:
    value = given[name]
    if not isinstance(value, str) or not value:
        raise Rejected(f"{name} takes a text")
    return value


def _words(given: dict[str, Any], name: str) -> list[str]:
    value = given[name]
    if not isinstance(value, list) or not value or not all(isinstance(word, str) for word in value):
        raise Rejected(f"{name} takes a list of texts")
    return value
