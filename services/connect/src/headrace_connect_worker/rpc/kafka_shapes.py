"""
Decides how answers look: the bodies of Kafka Connect's REST interface, from what is known. Pure; called by the routes.

Everything that is shown comes from the config topic as it was given: in the place of secrets there are references.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from headrace_connect.core.options import REQUIRED, Option, OptionType
from headrace_connect.secrets import has_reference
from headrace_connect.settings import Definition, Problem, ValueType, looks_secret
from headrace_connect_worker.core.policy import has_password

Json: TypeAlias = dict[str, Any]

HIDDEN: Final = "[hidden]"
UNKNOWN: Final = "unknown"
"""What a connector is of which nobody has said yet whether it is a source or a sink."""
_CLASS: Final = "connector.class"
_NO_ORDER: Final = -1
_WIDTHS: Final[Mapping[str, str]] = {
    ValueType.BOOLEAN: "SHORT",
    ValueType.INT: "SHORT",
    ValueType.LONG: "SHORT",
    ValueType.DOUBLE: "SHORT",
    ValueType.LIST: "LONG",
}


def error(status: int, message: str) -> Json:
    """Of every failure."""
    return {"error_code": status, "message": message}


def connector_info(name: str, config: Mapping[str, str], tasks: int, kind: str) -> Json:
    """``GET /connectors/{name}``; ``kind`` empty: nobody has said it yet."""
    return {
        "name": name,
        "config": dict(config),
        "tasks": [task_id(name, task) for task in range(tasks)],
        "type": kind or UNKNOWN,
    }


def task_id(name: str, task: int) -> Json:
    return {"connector": name, "task": task}


def state(state: str, worker_id: str, trace: str) -> Json:
    """How a connector is; the trace only where there is one."""
    return {"state": state, "worker_id": worker_id, **({"trace": trace} if trace else {})}


def task_state(task: int, of: Json) -> Json:
    return {"id": task, **of}


def state_info(name: str, connector: Json, tasks: Sequence[Json], kind: str) -> Json:
    """``GET /connectors/{name}/status``; ``tasks`` by their numbers."""
    return {"name": name, "connector": connector, "tasks": list(tasks), "type": kind or UNKNOWN}


def offsets(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any] | None]]) -> Json:
    """``GET /connectors/{name}/offsets``."""
    return {"offsets": [{"partition": dict(partition), "offset": offset} for partition, offset in pairs]}


def config_key(definition: Definition) -> Json:
    """A setting, as a ``ConfigKeyInfo``."""
    return {
        "name": definition.key,
        "type": definition.type.value,
        "required": definition.required,
        "default_value": definition.default,
        "importance": definition.importance.value,
        "documentation": definition.documentation,
        "group": definition.group or None,
        "order_in_group": definition.order if definition.group else _NO_ORDER,
        "width": _WIDTHS.get(definition.type, "MEDIUM"),
        "display_name": definition.key,
        "dependents": [],
    }


def option_key(option: Option) -> Json:
    """The same of a setting of a converter or a transform."""
    required = option.default is REQUIRED
    return {
        "name": option.name,
        "type": option.type.value,
        "required": required,
        "default_value": None if required else _as_text(option.default),
        "importance": "HIGH" if required else "MEDIUM",
        "documentation": option.doc,
        "group": None,
        "order_in_group": _NO_ORDER,
        "width": "SHORT" if option.type in (OptionType.BOOLEAN, OptionType.INT) else "MEDIUM",
        "display_name": option.name,
        "dependents": [],
    }


def config_infos(config: Mapping[str, str], definitions: Sequence[Definition], problems: Sequence[Problem]) -> Json:
    """
    ``PUT /connector-plugins/{plugin}/config/validate``: every setting with its value and what is wrong with it.

    A key that no setting has, or one of a family, is there without a definition. What is wrong between keys, or
    outside, stands at ``connector.class``.
    """
    single = {one.key: one for one in definitions if not one.family}
    keys = list(dict.fromkeys([_CLASS, *single, *config, *(problem.key for problem in problems if problem.key)]))
    errors: dict[str, list[str]] = {key: [] for key in keys}
    for problem in problems:
        errors[problem.key or _CLASS].append(problem.message)
    return {
        "name": config.get(_CLASS, ""),
        "error_count": len(problems),
        "groups": list(dict.fromkeys(one.group for one in definitions if one.group)),
        "configs": [_config_info(key, single.get(key), config, errors[key]) for key in keys],
    }


def _config_info(key: str, definition: Definition | None, config: Mapping[str, str], errors: Sequence[str]) -> Json:
    value = config.get(key, None if definition is None else definition.default)
    secret = looks_secret(key) if definition is None else definition.type is ValueType.PASSWORD or looks_secret(key)
    if value and ((secret and not has_reference(value)) or has_password(value)):
        value = HIDDEN
    return {
        "definition": None if definition is None else config_key(definition),
        "value": {
            "name": key,
            "value": value,
            "recommended_values": [] if definition is None else list(definition.choices),
            "errors": list(errors),
            "visible": True,
        },
    }


def invalid_config(problems: Sequence[Problem]) -> str:
    """The message of a configuration that is refused."""
    lines = "\n".join(problem.message for problem in problems)
    return (
        f"Connector configuration is invalid and contains the following {len(problems)} error(s):\n{lines}\n"
        "You can also find the above list of errors at the endpoint "
        "`/connector-plugins/{connectorType}/config/validate`"
    )


def _as_text(value: object) -> str | None:
    match value:
        case None | str():
            return value
        case bool():
            return str(value).lower()
        case tuple() | list():
            return ",".join(str(_as_text(item)) for item in value)
        case dict():
            return None
    return str(value)
