"""
What a user may say to the connector: every option, for which kind of query it is, and the rules between them.

Names and meanings are those of Spark's "Structured Streaming + Kafka Integration Guide", so that a query changes its
format and nothing else; what is ours is marked. Called by the data source when a query is planned, and again wherever
Spark makes the data source anew; all that is wrong is told in one error::

    >>> from headrace_spark.core.options import ConnectorOptions, Mode
    >>> options = {"kafka.bootstrap.servers": "broker:9292", "subscribe": "flights"}
    >>> ConnectorOptions.parse(options, Mode.READ_STREAM).start
    Latest()
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from headrace_common.core.errors import InvalidConfig
from headrace_common.core.secret import Secret
from headrace_spark.core import kafka_settings
from headrace_spark.core.limits import (
    Assign,
    Earliest,
    End,
    Latest,
    Selection,
    Start,
    Subscribe,
    SubscribePattern,
    end_of,
    rules_of_limits,
    start_of,
)
from headrace_spark.core.option_table import BY_NAME, OPTIONS, READS, WRITES, Known, Mode
from headrace_spark.core.option_values import Reader, addresses, quote

_SELECTIONS: Final[Mapping[str, Callable[[Any], Selection]]] = {
    "assign": Assign,
    "subscribe": Subscribe,
    "subscribePattern": SubscribePattern,
}
TOKEN: Final = "headrace.token"
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "outputmode"})
"""Spark passes its own options of a query on to the sink."""
_PUSHDOWN: Final = "pushDownFilters"
_BOOTSTRAP: Final = kafka_settings.PREFIX + kafka_settings.BOOTSTRAP


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorOptions:
    """What a query was told, with defaults. What is for other kinds of queries has its default."""

    mode: Mode
    bootstrap_servers: tuple[str, ...]
    cluster_id: str | None = None
    """Ours: of the cluster that is meant; where another answers, nothing is read or written."""
    token: Secret | None = None
    """Ours: the API key, or a token of an issuer, that the driver shows. Spark hides it by the option's name. Pickled
    options do not have it: tasks are given a key of their own."""
    token_file: str | None = None
    """Ours: the file that has it, on driver and executors."""
    ca_file: str | None = None
    """Ours: the file of the cluster's CAs, on driver and executors."""
    task_key_lifetime_ms: int | None = None
    """Ours: how long the keys last that the driver makes for its tasks; None: as the kind of query says."""
    selection: Selection | None = None
    """What is read; None: this query writes."""
    start: Start = field(default_factory=Earliest)
    """Where a new query begins. Streaming: latest, unless it says so."""
    end: End = field(default_factory=Latest)
    """Where a batch query ends."""
    latest_if_no_match: bool = False
    """A starting time after the last record: begin at the end, instead of failing."""
    fail_on_data_loss: bool = True
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 900_000
    """How long a batch waits for ``min_offsets_per_trigger``."""
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    """Most offsets in one task."""
    max_tasks: int | None = None
    """Ours: most tasks of one batch."""
    group_id: str | None = None
    group_id_prefix: str = "spark-headrace-source"
    """The query is shown as a group of this name and a suffix."""
    include_headers: bool = False
    poll_timeout_ms: int = 120_000
    """How long a task waits for records that must be there."""
    long_poll_ms: int = 200
    """Ours: how long an idle streaming query waits for news in one question."""
    topic: str | None = None
    """Where all rows go; None: the column ``topic`` says."""
    transactional: bool = True
    """Ours: exactly once. False: at least once, without transactions."""
    transactional_id: str | None = None
    """Ours: begins the names of this query's transactions."""
    client: Mapping[str, Any] = field(default_factory=dict)
    """Settings for the SDK's consumer or producer, by its names."""
    warnings: tuple[str, ...] = ()
    """What was given and changes nothing, for the log."""

    def __reduce__(self) -> tuple[Any, ...]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return _without_token, (values | {"token": None},)

    @property
    def read_committed(self) -> bool:
        return self.client.get("isolation_level") == "read_committed"

    def group(self, reader: str) -> str:
        """Under which name a reading query is shown; ``reader`` is ``Positions.reader`` of a stream."""
        return self.group_id or f"{self.group_id_prefix}-{reader}"

    @staticmethod
    def parse(options: Mapping[str, str], mode: Mode) -> ConnectorOptions:
        """
        Read the options of a query, whose names are of any case.

        Raises:
            InvalidConfig: all that is wrong, in one text that names no value of a secret.
        """
        return _Parsing(mode).run(options)


def _without_token(values: dict[str, Any]) -> ConnectorOptions:
    return ConnectorOptions(**values)


def drop_token(options: Mapping[str, str]) -> dict[str, str]:
    """``options`` as they may go to tasks."""
    return {name: value for name, value in options.items() if name.strip().lower() != TOKEN}


def headers_wanted(options: Mapping[str, str]) -> bool:
    """
    What a schema depends on, where it is not known yet whether the query is a batch or a stream.

    Raises:
        InvalidConfig: what would be wrong in both.
    """
    wrong: list[tuple[str, ...]] = []
    for mode in (Mode.READ_BATCH, Mode.READ_STREAM):
        parsing = _Parsing(mode)
        try:
            return parsing.run(options).include_headers
        except InvalidConfig:
            wrong.append(parsing.wrong)
    batch, stream = wrong
    raise InvalidConfig("; ".join([each for each in batch if each in stream] or batch + stream))


class _Parsing:
    """Reads one query's options, gathering what is wrong."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._wrong: list[str] = []
        self._warnings: list[str] = []
        self._values: dict[str, Any] = {}
        self._client: dict[str, Any] = {}
        self._group_id: str | None = None
        self._bootstrap: dict[str, tuple[str, ...]] = {}

    @property
    def wrong(self) -> tuple[str, ...]:
        """What was found to be wrong."""
        return tuple(dict.fromkeys(self._wrong))

    def run(self, options: Mapping[str, str]) -> ConnectorOptions:
        """Read all, then judge them together."""
        for name, value in options.items():
            self._option(name.strip(), value)
        bootstrap = self._one_bootstrap()
        selection = self._selection()
        self._rules()
        start, end = self._limits()
        if not self._wrong and selection is not None:
            self._wrong += rules_of_limits(selection, start, end, batch=self._mode is Mode.READ_BATCH)
        if self._wrong:
            raise InvalidConfig("; ".join(self.wrong))
        return self._build(bootstrap, selection, start, end)

    def _option(self, given: str, value: object) -> None:
        name = given.lower()
        if name in _SPARKS_OWN:
            return
        if not isinstance(value, str):
            self._wrong.append(f"{quote(given)} takes a text")
        elif name in (_BOOTSTRAP, kafka_settings.BOOTSTRAP):
            self._read(given, addresses, value, self._bootstrap, name)
        elif name.startswith(kafka_settings.PREFIX):
            self._kafka(name.removeprefix(kafka_settings.PREFIX), value)
        elif name == "path":
            self._wrong.append(
                "topics have no path: call load() and save() without one, and set 'subscribe' or 'topic'"
            )
        elif name == _PUSHDOWN.lower():
            self._wrong.append(
                f"'{_PUSHDOWN}' is refused: Spark would use what one filter left for every other use of the same "
                "DataFrame, and answer wrongly; say what to read by 'assign', 'startingOffsets', 'startingTimestamp' "
                "and the like"
            )
        elif name in BY_NAME:
            self._parse_known(BY_NAME[name], value)
        elif kafka_settings.is_secret(name):
            self._wrong.append(kafka_settings.explain_secret(given))
        else:
            self._wrong.append(self._unknown(given))

    def _read(self, given: str, read: Reader, value: str, into: dict[str, Any], name: str) -> None:
        try:
            into[name] = read(value)
        except ValueError as error:
            self._wrong.append(f"{quote(given)} {error}")

    def _parse_known(self, known: Known, value: str) -> None:
        if self._mode in known.ignored:
            self._warnings.append(f"'{known.name}' changes nothing in {self._mode.value}")
        elif self._mode in known.modes:
            self._read(known.name, known.read, value, self._values, known.name)
        else:
            why = known.instead or "it is for reading"
            self._wrong.append(f"'{known.name}' is not for {self._mode.value}: {why}")

    def _kafka(self, name: str, value: str) -> None:
        if name == kafka_settings.GROUP_ID and not self._mode.writes:
            self._group_id = value.strip() or None
            self._warnings.append(
                "'kafka.group.id' is only the name under which the query is shown; give each query its own"
            )
            return
        try:
            found = kafka_settings.read_setting(name, value, writing=self._mode.writes)
        except ValueError as error:
            self._wrong.append(str(error))
            return
        if found is None:
            self._warnings.append(f"{quote(kafka_settings.PREFIX + name)} has no effect here")
        else:
            self._client[found[0]] = found[1]

    def _unknown(self, given: str) -> str:
        alike = WRITES if self._mode.writes else READS
        known = [*(each.name for each in OPTIONS if alike & (each.modes | each.ignored)), _BOOTSTRAP]
        spelled = {name.lower(): name for name in known}
        near = difflib.get_close_matches(given.lower(), spelled, n=1, cutoff=0.7)
        hint = f"; did you mean '{spelled[near[0]]}'?" if near else "."
        return f"{quote(given)} is not an option{hint} Known: {', '.join(sorted(known, key=str.lower))}, kafka.*"

    def _one_bootstrap(self) -> tuple[str, ...]:
        found = list(self._bootstrap.values())
        if not found and not self._wrong:
            self._wrong.append(f"'{_BOOTSTRAP}' must say where the cluster is, such as broker-1:9292,broker-2:9292")
        if len(set(found)) > 1:
            self._wrong.append(f"'{_BOOTSTRAP}' and '{kafka_settings.BOOTSTRAP}' differ; give one of them")
        return found[0] if found else ()

    def _selection(self) -> Selection | None:
        given = [name for name in _SELECTIONS if name in self._values]
        if self._mode.writes:
            return None
        if len(given) > 1:
            self._wrong.append(f"only one of {', '.join(given)} can be given; they all say what to read")
        if not given:
            if not self._wrong:
                self._wrong.append("one of assign, subscribe, subscribePattern must say what to read")
            return None
        return _SELECTIONS[given[0]](self._values[given[0]])

    def _limits(self) -> tuple[Start, End]:
        values = self._values
        start, unused_start = start_of(values, streams=self._mode.streams)
        end, unused_end = end_of(values)
        self._warnings += [f"'{name}' changes nothing beside '{winner}'" for name, winner in unused_start + unused_end]
        if values.get("startingOffsetsByTimestampStrategy") and not start.by_time:
            self._warnings.append("'startingOffsetsByTimestampStrategy' changes nothing without a starting time")
        return start, end

    def _rules(self) -> None:
        get = self._values.get
        most, least = get("maxOffsetsPerTrigger"), get("minOffsetsPerTrigger")
        if most is not None and least is not None and least > most:
            self._wrong.append(f"'minOffsetsPerTrigger' ({least}) is above 'maxOffsetsPerTrigger' ({most})")
        if get("maxTriggerDelay") is not None and least is None:
            self._warnings.append("'maxTriggerDelay' changes nothing without 'minOffsetsPerTrigger'")
        tasks, pieces = get("maxTasks"), get("minPartitions")
        if tasks is not None and pieces is not None and pieces > tasks:
            self._wrong.append(f"'minPartitions' ({pieces}) is above 'maxTasks' ({tasks})")
        if tasks is not None and get("maxRecordsPerPartition") is not None:
            self._wrong.append("'maxTasks' and 'maxRecordsPerPartition' contradict each other; give one of them")
        if get("headrace.token") is not None and get("headrace.tokenFile") is not None:
            self._wrong.append("'headrace.token' and 'headrace.tokenFile' are both given; give the file alone")
        if get("taskKeyLifetime") is not None and get("headrace.token") is None:
            self._warnings.append("'taskKeyLifetime' changes nothing without 'headrace.token'")
        if self._group_id is not None and get("groupIdPrefix") is not None:
            self._warnings.append("'groupIdPrefix' changes nothing beside 'kafka.group.id'")
        if self._mode.writes and get("transactional", True):
            self._transaction_rules()
        elif get("transactionalId") is not None:
            self._wrong.append("'transactionalId' names transactions, and 'transactional' is false; give one of them")

    def _transaction_rules(self) -> None:
        way = "; set it so, or 'transactional' to false"
        if self._client.get("acks", "all") not in ("all", "-1"):
            self._wrong.append(f"writing exactly once needs 'kafka.acks' all{way}")
        if self._client.get("enable_idempotence") is False:
            self._wrong.append(f"writing exactly once needs 'kafka.enable.idempotence' true{way}")

    def _build(
        self, bootstrap: tuple[str, ...], selection: Selection | None, start: Start, end: End
    ) -> ConnectorOptions:
        plain = {field_name: self._values[name] for name, field_name in _FIELDS.items() if name in self._values}
        return ConnectorOptions(
            mode=self._mode,
            bootstrap_servers=bootstrap,
            selection=selection,
            start=start,
            end=end,
            latest_if_no_match=self._values.get("startingOffsetsByTimestampStrategy") == "latest",
            group_id=self._group_id,
            client=dict(sorted(self._client.items())),
            warnings=tuple(self._warnings),
            **plain,
        )


_FIELDS: Final = {
    "clusterId": "cluster_id",
    "headrace.token": "token",
    "headrace.tokenFile": "token_file",
    "headrace.caFile": "ca_file",
    "taskKeyLifetime": "task_key_lifetime_ms",
    "failOnDataLoss": "fail_on_data_loss",
    "maxOffsetsPerTrigger": "max_offsets_per_trigger",
    "minOffsetsPerTrigger": "min_offsets_per_trigger",
    "maxTriggerDelay": "max_trigger_delay_ms",
    "minPartitions": "min_partitions",
    "maxRecordsPerPartition": "max_records_per_partition",
    "maxTasks": "max_tasks",
    "groupIdPrefix": "group_id_prefix",
    "includeHeaders": "include_headers",
    "kafkaConsumer.pollTimeoutMs": "poll_timeout_ms",
    "longPollMs": "long_poll_ms",
    "topic": "topic",
    "transactional": "transactional",
    "transactionalId": "transactional_id",
}
