"""Settings of the sink ``lake-sink``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from headrace_connect.connectors.lake_sink.added import ADDED
from headrace_connect.connectors.places import check_url
from headrace_connect.core.drift import Drift
from headrace_connect.core.options import BadOption
from headrace_connect.settings import near, setting
from headrace_connect.transforms.expression_text import parse_columns
from headrace_streams.core.expressions import Expr

_TOPIC: Final = "${topic}"
PARTITION_BY: Final = "partition.by"


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """Of the sink ``lake-sink``."""

    name: str
    """The connector's name: tables of Delta and Iceberg keep positions under it."""
    path: str
    """The directory that has the tables: ``/var/lib/lake``, ``s3://BUCKET/PATH``, ``gs://BUCKET/PATH``. Credentials of
    a bucket are those of the environment."""
    format: Literal["parquet", "delta", "iceberg"] = "parquet"
    """What a table is. ``parquet``: files, and beside them which of them count. ``delta``: a Delta
    table. ``iceberg``: an Iceberg table, of a catalog."""
    topics: tuple[str, ...] = ()
    """What is read. With ``delta`` and ``iceberg`` all topics go to one table: it has the positions."""
    catalog: Mapping[str, str] = setting(prefix="catalog.")
    """Of Iceberg: what pyiceberg takes, as ``catalog.type``, ``catalog.uri``, ``catalog.s3.endpoint``. The warehouse is
    ``path``, unless ``catalog.warehouse`` says another."""
    table: str = _TOPIC
    """The table of a record: a directory below ``path``; of Iceberg its name, with the namespace before a point, else
    ``default``. ``${topic}`` is its topic's name."""
    partition_by: str = setting("", key=PARTITION_BY)
    """Columns that the table is partitioned by, as ``day=col("at").dt.date()``, or ``country=col("country")``: what the
    transform ``expr`` takes. Empty: it is not."""
    added_columns: tuple[str, ...] = ("partition", "offset", "timestamp")
    """Columns that each row has beside the fields of its value: of ``topic``, ``partition``, ``offset``, ``timestamp``
    and ``key``, as ``__connect_offset``."""
    drift: Drift = Drift.ADD
    """A field that the table does not have, or that has another type. ``add``: a new column; whole numbers become
    wider ones, or doubles where none is rounded. ``strict``: the record is refused. ``fail``: the task fails.
    ``ignore``: the field is left out; another type is refused. A value of another type that is equal in the column's
    type fits always."""
    flush_interval_ms: int = setting(60_000, low=0, high=3_600_000)
    """What was read is committed after so long at the latest, in ms; ``offset.flush.interval.ms`` goes before it."""
    flush_rows: int = setting(1_000_000, low=1, high=100_000_000)
    """Or after so many records of a task."""
    flush_bytes: int = setting(128 << 20, low=1 << 20, high=1 << 30)
    """Or after so many bytes of records as they are in their topic. They are in memory, about three times."""

    def __post_init__(self) -> None:
        check_url(self.path)
        if not self.table.strip():
            raise ValueError("table is empty")
        if self.format != "parquet" and _TOPIC in self.table and len(self.topics) != 1:
            raise ValueError(
                f"with format={self.format} a connector writes one table; set table to its name, or make a connector "
                "for each topic"
            )
        for name in self.added_columns:
            if name not in ADDED:
                raise ValueError(f"added.columns has {name!r}; there are {', '.join(ADDED)}{near(name, list(ADDED))}")
        if bool(self.catalog) != (self.format == "iceberg"):
            raise ValueError("catalog.type and catalog.uri are for format=iceberg, and it needs them")
        code = [key for key in self.catalog if key.endswith(("-impl", ".impl")) or key.partition(".")[0] == "auth"]
        if code:
            raise ValueError(f"catalog.{code[0]} names code that would be loaded, which a connector does not do")
        if self.partition_by:
            try:
                parse_columns(PARTITION_BY, self.partition_by)
            except BadOption as error:
                raise ValueError(f"{PARTITION_BY} {error}") from error

    @property
    def partition_columns(self) -> dict[str, Expr]:
        """The columns that a table is partitioned by, by name."""
        return dict(parse_columns(PARTITION_BY, self.partition_by)) if self.partition_by else {}

    @property
    def only_table(self) -> str:
        """Of formats in which all partitions write one."""
        return self.table_of(self.topics[0]) if self.topics else self.table

    def table_of(self, topic: str) -> str:
        """The table of a topic's records."""
        return self.table.replace(_TOPIC, topic)
