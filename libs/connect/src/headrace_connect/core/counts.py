"""What a task counts; hosts tell it to their worker, which shows it to Prometheus."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """
    Of one task since its host was given it, over all its restarts. Bytes are of records as topics have them: of a
    source those it wrote, of a sink those it read.
    """

    read_records: int = 0
    """Rows that a source gave, records that a sink polled; what is read again counts again."""
    read_bytes: int = 0
    written_records: int = 0
    """Committed: in the topic, or in the target."""
    written_bytes: int = 0
    dead_letters: int = 0
    """Records that could not be handled: committed as dead letters, or dropped where there is no topic for them."""
    commits: int = 0
    commit_us: int = 0
    """In all, from the first step of a commit to its answer; of one that failed in between nothing."""
    retries: int = 0
    """Steps that failed and were to be tried again: reading, writing, committing."""
    restarts: int = 0
    """Times that the task failed and was to be started again."""
    read_us: int = 0
    """In all, of waiting for rows of the source, of all its splits together; or for records of topics."""
    convert_us: int = 0
    """In all, of converting, without transforms."""
    transform_us: int = 0
    write_us: int = 0
    """In all, of sending to topics; or of ``write`` of the sink."""
    retained_bytes: int | None = None
    """Of a source: what its system keeps for it, as ``Source.retained_bytes``."""
    lag_records: int | None = None
    """Of a sink: what is in its partitions, as it knew last, and is not committed. None: not known."""
    delay_ms: int | None = None
    """Of a source: how old the newest record of the last commit was then. None: its records have no time."""
