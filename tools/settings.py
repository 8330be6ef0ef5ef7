"""
Makes what tells of settings from their declarations: docs/settings.md, and the settings in the chart's schema.
``python tools/settings.py [--check]``.

Processes declare theirs in ``config.py`` (``core.bounds``), topics and brokers in ``core.setting_tables``, clients in
``headrace.settings`` and beside it. ``--check`` fails where a file differs.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from headrace.consumer_settings import ConsumerSettings
from headrace.settings import ClientSettings, DecidingSettings, ProducerSettings
from headrace_admin.config import AdminConfig
from headrace_broker.config import BrokerConfig
from headrace_common.core.bounds import takes
from headrace_common.core.setting import INT_MAX, Setting, Type
from headrace_common.core.setting_tables import BROKER_SETTINGS, TOPIC_SETTINGS
from headrace_common.runtime.docs import field_docs
from headrace_common.runtime.env import Option, list_options, type_name
from headrace_connect_worker.config import ConnectConfig
from headrace_controller.config import ControllerConfig
from headrace_coordinator.config import CoordinatorConfig
from headrace_streams.config import StreamsConfig

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "settings.md"
SCHEMA: Final = ROOT / "deploy" / "helm" / "headrace" / "values.schema.json"
EXACT_MAX: Final = 2**53 - 1
"""Of the whole numbers that Helm reads exactly; larger ones are given as text."""

CONFIGS: Final[Mapping[str, type]] = {
    "broker": BrokerConfig,
    "controller": ControllerConfig,
    "coordinator": CoordinatorConfig,
    "admin": AdminConfig,
}
OF_PROCESSES: Final[Mapping[str, type]] = {**CONFIGS, "connect": ConnectConfig}
"""And of a Connect worker, which is a client."""
IN_CHART: Final[Mapping[str, type]] = {**OF_PROCESSES, "streams": StreamsConfig}
"""And of a worker of streams."""
OF_THE_CHART: Final = frozenset(
    {
        *("node_id", "listen", "advertise_host", "http_listen", "hosts", "metrics_listen", "health_listen"),
        *("external_listen", "external_advertise", "external_advertise_file", "internal_listen", "ready_file"),
        *("controllers", "etcd", "etcd_ca", "etcd_cert", "etcd_key", "data_dir", "rack", "topic_notes_file"),
        *("config_providers_file_allowed_paths", "spark_application"),
        *("access_mode", "super_users", "access_vouched", "admin_key_file"),
        *("oidc_issuers_file", "kubernetes_audience"),
        *("audit_to", "audit_dir", "audit_on_full"),
        *("tls_cert", "tls_key", "tls_ca", "tls_trust_domain", "tls_mode", "mtls_listen", "mtls_client_ca"),
        *("query_tls_cert", "query_tls_key", "query_tls_ca", "query_tls_mode"),
        *("bootstrap_servers", "state_dir", "standbys", "zone", "query_listen"),
        *("restart_wait_ms_max", "lock_wait_ms_max", "leave_socket", "node_token_file", "node_token_loopback_only"),
    }
)
"""Settings that the chart gives by itself, because it knows the answer; they are not for ``config``."""
DYNAMIC: Final = {name: setting for name, setting in BROKER_SETTINGS.items() if setting.dynamic}
PATTERNS: Final = {("controller", "cluster"): "^[ -,.0-~][ -.0-~]*$"}
"""What the chart asks of a text beyond its type."""

HEAD: Final = """\
# Settings

<!-- made by `make proto` from the settings' declarations; change those -->

All settings, with their defaults and what they take. A value that is not taken is refused with the setting's name.
"""
PROCESSES: Final = """\
## Processes

A setting `drain_ms_max` of a broker is the option `--drain-ms-max` or the variable `HEADRACE_BROKER_DRAIN_MS_MAX`;
options win. On Kubernetes it is `config.broker.drain_ms_max` in the values. A local cluster takes those of brokers and
coordinators: `headrace up --set tail.cache.bytes=0`. A change takes a restart.
"""
TOPICS: Final = """\
## Topics

`headrace topic set orders retention.ms=3600000` changes a setting of a topic at once.
"""
BROKERS: Final = """\
## Cluster and brokers

`headrace cluster configs NAME=VALUE` changes a setting of all brokers at once, `headrace broker configs ID NAME=VALUE`
that of one broker. Those marked *cluster* are the same on all brokers. Those marked *at start* belong to a process, and
are shown only.
"""
STREAMS: Final = """\
## Streams

Keyword arguments of `app.run()`. For `headrace streams run` a setting `commit_rows` is the variable
`HEADRACE_STREAMS_COMMIT_ROWS`; on Kubernetes it is `streamsApps[].settings.commit_rows` in the values.
"""
CLIENTS: Final = """\
## Clients

Keyword arguments of the clients, or a dict with Kafka's names (`linger.ms`).
"""


_TITLES: Final = {"connect": "Connect worker"}

# --- the page ---------------------------------------------------------------------------------------------------------


def write_page() -> str:
    """The text of docs/settings.md."""
    options = {service: {o.name: o for o in list_options(cls)} for service, cls in OF_PROCESSES.items()}
    shared = [
        name
        for name in options["broker"]
        if all(_alike(options[service].get(name), options["broker"][name]) for service in CONFIGS)
    ]
    parts = [HEAD, *_processes(options, shared), *_dynamic(), *_clients()]
    return "\n".join(parts)


def _alike(one: Option | None, other: Option) -> bool:
    return one is not None and one.doc == other.doc and takes(one.declared) == takes(other.declared)


def _processes(options: Mapping[str, Mapping[str, Option]], shared: Sequence[str]) -> Iterable[str]:
    yield PROCESSES
    yield "### Every process\n"
    yield _table(_row(options["broker"][name], [options[service][name] for service in CONFIGS]) for name in shared)
    for service, own in options.items():
        yield f"### {_TITLES.get(service, service.capitalize())}\n"
        yield _table(_row(option) for name, option in own.items() if service not in CONFIGS or name not in shared)


def _row(option: Option, among: Sequence[Option] = ()) -> tuple[str, str, str, str]:
    defaults = {service: _shown(one.default) for service, one in zip(CONFIGS, among, strict=False)}
    default = _shown(option.default)
    if len(set(defaults.values())) > 1:
        default = "; ".join(f"{service} {text or 'none'}" for service, text in defaults.items())
    return option.name, default, takes(option.declared) or type_name(option.type), option.doc


def _dynamic() -> Iterable[str]:
    yield TOPICS
    yield _table(_dynamic_row(setting) for setting in TOPIC_SETTINGS.values())
    yield BROKERS
    yield _table(_dynamic_row(setting) for setting in BROKER_SETTINGS.values())


def _dynamic_row(setting: Setting) -> tuple[str, str, str, str]:
    notes = [
        text for text, holds in ((" (cluster)", not setting.per_broker), (" (at start)", not setting.dynamic)) if holds
    ]
    if setting.feature is not None:
        notes.append(f" (from feature level {setting.feature.level} on)")
    return setting.name, setting.default, _bounds(setting), setting.doc + "".join(notes)


def _bounds(setting: Setting) -> str:
    if setting.choices:
        return ", ".join(setting.choices)
    if setting.low is None and setting.high is None:
        return setting.type.value
    low = f"{setting.low:g}" if isinstance(setting.low, float) else str(setting.low)
    return f"{low} or more" if setting.high is None else f"{low} to {setting.high}"


def _clients() -> Iterable[str]:
    yield CLIENTS
    shared = field_docs(ClientSettings)
    yield "### Every client\n"
    yield _table(_client_rows(ClientSettings))
    for cls, name in (
        (ProducerSettings, "Producer"),
        (ConsumerSettings, "Consumer"),
        (DecidingSettings, "Admin client and others"),
    ):
        yield f"### {name}\n"
        yield _table(row for row in _client_rows(cls) if row[0] not in shared)
    yield STREAMS
    yield _table(_client_rows(StreamsConfig))


def _client_rows(cls: type) -> Iterable[tuple[str, str, str, str]]:
    docs = field_docs(cls)
    for field in dataclasses.fields(cls):
        yield field.name, _shown(field.default), takes(field) or _kind(field), docs.get(field.name, "")


def _kind(field: dataclasses.Field[Any]) -> str:
    return {"bool": "true or false", "str": "text", "str | None": "text"}.get(str(field.type), "")


def _shown(default: object) -> str:
    match default:
        case dataclasses._MISSING_TYPE() | None | () | "":
            return ""
        case bool():
            return str(default).lower()
        case Enum():
            return str(default.value)
        case tuple():
            return ",".join(map(str, default))
    return f"{default:g}" if isinstance(default, float) else str(default)


def _table(rows: Iterable[tuple[str, str, str, str]]) -> str:
    lines = ["| setting | default | takes | what it does |", "|---|---|---|---|"]
    for name, default, bounds, doc in rows:
        text = " ".join(doc.replace("``", "`").split()).replace("|", "\\|")
        lines.append(f"| `{name}` | {default} | {bounds.replace('|', ', ')} | {text} |")
    return "\n".join([*lines, ""])


# --- the chart's schema -----------------------------------------------------------------------------------------------


def write_schema(text: str) -> str:
    """The chart's schema with the settings of processes, clusters and topics in it."""
    at = text.index('\n    "config": {')
    for name in ("cluster", *OF_PROCESSES):
        parts = dynamic_parts(DYNAMIC) if name == "cluster" else process_parts(name)
        text = _replaced(text, text.index(f'\n        "{name}": {{', at), parts)
    at = text.index('\n          "settings": {', text.index('\n    "streamsApps": {'))
    text = _replaced(text, at, process_parts("streams"))
    at = text.index('\n          "configs": {', text.index('\n    "topics": {'))
    return _replaced(text, at, dynamic_parts(TOPIC_SETTINGS))


def process_parts(service: str) -> dict[str, dict[str, Any]]:
    """What the schema says of each setting of a process."""
    options = (option for option in list_options(IN_CHART[service]) if option.name not in OF_THE_CHART)
    return {o.name: _of_option(service, o) for o in sorted(options, key=lambda option: option.name)}


def _of_option(service: str, option: Option) -> dict[str, Any]:
    kind = _without_none(option.type)
    low, high, choices = (option.declared.metadata.get(name) for name in ("low", "high", "choices"))
    if get_origin(kind) is Literal:
        choices = get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        choices = [member.value for member in kind]
    if get_origin(kind) is tuple and not option.default:
        return {"type": ["array", "string"], "items": {"type": "string"}}
    if get_origin(kind) is tuple:
        words = "|".join(typing.cast("tuple[str, ...]", option.default))
        listed = f"^({words})(, *({words}))*$"
        return {"type": ["array", "string"], "items": {"enum": words.split("|")}, "minItems": 1, "pattern": listed}
    if choices is not None:
        return {"enum": list(choices)}
    if kind is bool:
        return {"type": "boolean"}
    if kind is int:
        return {"type": "integer", "minimum": low} | ({} if high is None else {"maximum": high})
    pattern = PATTERNS.get((service, option.name))
    return {"type": "string"} | ({} if pattern is None else {"pattern": pattern})


def _without_none(kind: Any) -> Any:
    return (
        next((one for one in get_args(kind) if one is not type(None)), kind) if type(None) in get_args(kind) else kind
    )


def dynamic_parts(table: Mapping[str, Setting]) -> dict[str, dict[str, Any]]:
    """What the schema says of each setting of a table: numbers as such or as texts."""
    return {name: _of_setting(table[name]) for name in sorted(table)}


def _of_setting(setting: Setting) -> dict[str, Any]:
    if setting.type is Type.BOOLEAN:
        return {"enum": [True, False, "true", "false"]}
    if setting.type is Type.LIST:
        words = "|".join(setting.choices)
        return {"type": "string", "pattern": f"^({words})(,({words}))*$"}
    if setting.type is Type.STRING:
        return {"enum": list(setting.choices)} if setting.choices else {"type": "string"}
    low = int(setting.low or 0)
    high = INT_MAX if setting.high is None and setting.type is Type.INT else setting.high
    if setting.type is Type.DOUBLE:
        part: dict[str, Any] = {"type": ["number", "string"], "pattern": "^[0-9.eE+-]+$"}
    else:
        pattern = "^-?[0-9]+$" if low < 0 else "^[0-9]+$" if low == 0 else "^0*[1-9][0-9]*$"
        part = {"type": ["integer", "string"], "pattern": pattern}
    part["minimum"] = low
    return part if high is None or high > EXACT_MAX else part | {"maximum": high}


def _replaced(text: str, at: int, parts: Mapping[str, Any]) -> str:
    """The text with the properties of the object that begins at ``at`` replaced, one a line."""
    found = re.compile(r'"properties": \{\n.*?\n( *)\}', re.S).search(text, at)
    assert found is not None, "the object has properties"
    inner = found[1] + "  "
    lines = ",\n".join(f"{inner}{json.dumps(name)}: {json.dumps(part)}" for name, part in parts.items())
    return f'{text[: found.start()]}"properties": {{\n{lines}\n{found[1]}}}{text[found.end() :]}'


def main() -> int:
    """Write the files, or compare them."""
    check, differ = "--check" in sys.argv[1:], False
    made: Mapping[Path, Callable[[], str]] = {
        PAGE: write_page,
        SCHEMA: lambda: write_schema(SCHEMA.read_text("utf-8")),
    }
    for path, write in made.items():
        text = write()
        if path.exists() and path.read_text("utf-8") == text:
            continue
        if check:
            differ = True
            print(
                f"{path.relative_to(ROOT)} differs from what settings declare. Run 'make proto', commit.",
                file=sys.stderr,
            )
        else:
            path.write_text(text, "utf-8")
    return int(differ)


if __name__ == "__main__":
    raise SystemExit(main())
