"""Settings of the sink ``files-sink``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace_connect.connectors.places import check_url
from headrace_connect.settings import setting


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """Of the sink ``files-sink``."""

    path: str
    """The directory: ``/var/spool/out``, ``s3://BUCKET/PATH``, ``gs://BUCKET/PATH``. Credentials of a bucket are those
    of the environment."""
    format: Literal["jsonl", "csv", "parquet", "arrow"] = "jsonl"
    """What a file holds. Records without fields have one column ``value``."""
    file_offsets: int = setting(10_000, low=1, high=1_000_000)
    """A file has the records from one multiple of so many offsets to the next. Must not be changed for a directory that
    is written to."""
    compression: Literal["none", "gzip", "zstd"] = "none"
    """Of JSON lines and CSV. Parquet and Arrow are always zstd."""

    def __post_init__(self) -> None:
        check_url(self.path)
