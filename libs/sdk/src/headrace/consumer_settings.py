"""
Decides what a consumer may be told: Kafka's setting names with underscores, their bounds, and the rules between them.

``Consumer(**settings)`` of both twins reads its keyword arguments here::

    >>> from headrace.consumer_settings import ConsumerSettings
    >>> from headrace.settings import read_settings
    >>> read_settings(ConsumerSettings, {"auto_offset_reset": "by_duration:PT1H"}).max_poll_records
    500
    >>> read_settings(ConsumerSettings, {"check_crc": 1})
    Traceback (most recent call last):
    ...
    headrace_common.core.errors.InvalidConfig: check_crc is not a setting; did you mean check_crcs?
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace._core.fetch_plans import FetchLimits
from headrace._core.starts import parse_reset
from headrace.settings import INT_MAX, ClientSettings, setting
from headrace_common.core.errors import InvalidConfig

READ_UNCOMMITTED = "read_uncommitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings(ClientSettings):
    """Settings of a consumer. Defaults are those of Kafka's Java client 4.x."""

    auto_offset_reset: str = "latest"
    """Where to read without a position: ``latest``, ``earliest``, ``by_duration:PT1H``, or ``none``: raise."""
    fetch_min_bytes: int = setting(1, low=0, high=INT_MAX)
    """A broker answers when it has so much, or after fetch_max_wait_ms."""
    fetch_max_wait_ms: int = setting(500, low=0, high=300_000)
    """How long a broker may wait for fetch_min_bytes, in ms."""
    fetch_max_bytes: int = setting(50 << 20, low=1, high=1 << 30)
    """Most bytes buffered and on the wire, per broker; a first batch that is larger comes all the same."""
    max_partition_fetch_bytes: int = setting(1 << 20, low=1, high=1 << 30)
    """Most bytes of one partition in one answer; a first batch that is larger comes all the same."""
    max_poll_records: int = setting(500, low=1, high=INT_MAX)
    """Most records that ``poll`` returns when it is not told another number."""
    client_rack: str = ""
    """Where this client is; followers of the same rack are read from where brokers have a rack. Empty: only leaders."""
    check_crcs: bool = True
    """Check the bytes of each batch against the checksum that its producer computed."""
    isolation_level: str = READ_UNCOMMITTED
    """Only ``read_uncommitted`` until there are transactions."""
    default_api_timeout_ms: int = setting(60_000, low=1, high=INT_MAX)
    """Calls without a timeout of their own, and partitions that cannot be read, raise after this time, in ms."""
    key_deserializer: Callable[[bytes], Any] | str | None = None
    """Turns a key into something else: a function, or a name: ``json``, ``string``, ``int64`` … None stays None."""
    value_deserializer: Callable[[bytes], Any] | str | None = None
    """The same for values."""

    def rules(self) -> list[str]:
        """What is wrong between fields."""
        wrong: list[str] = []
        try:
            parse_reset(self.auto_offset_reset)
        except InvalidConfig as error:
            wrong.append(str(error))
        except AttributeError:
            wrong.append(f"auto_offset_reset takes a text such as 'earliest', not {self.auto_offset_reset!r}")
        if self.isolation_level == "read_committed":
            wrong.append("isolation_level='read_committed' comes with transactions; use 'read_uncommitted' until then")
        elif self.isolation_level != READ_UNCOMMITTED:
            wrong.append(f"isolation_level takes 'read_uncommitted', not {self.isolation_level!r}")
        if self.retry_backoff_max_ms < self.retry_backoff_ms:
            wrong.append(f"retry_backoff_max_ms ({self.retry_backoff_max_ms}) is below retry_backoff_ms")
        return wrong

    @property
    def limits(self) -> FetchLimits:
        """The bounds of prefetching and retrying."""
        return FetchLimits(
            fetch_max_bytes=self.fetch_max_bytes,
            max_partition_fetch_bytes=min(self.max_partition_fetch_bytes, self.fetch_max_bytes),
            retry_backoff_ms=max(1, self.retry_backoff_ms),
            retry_backoff_max_ms=max(1, self.retry_backoff_max_ms),
            api_timeout_ms=self.default_api_timeout_ms,
            follow_ms=self.metadata_max_age_ms,
        )
