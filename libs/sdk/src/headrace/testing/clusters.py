"""
A real cluster for tests, and what it takes to have one. The processes are those of ``headrace up``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from headrace.admin import AdminClient
from headrace.consumer import Consumer
from headrace.log_watch import LogWatch
from headrace.producer import Producer
from headrace.range_reader import RangeReader

if TYPE_CHECKING:
    from headrace.setting_types import (
        AdminSettingsDict,
        ConsumerSettingsDict,
        ProducerSettingsDict,
        ReadingSettingsDict,
    )
    from headrace_cli.local import LocalCluster

_NUMBERS = count(1)


class ClusterUnavailable(Exception):
    """The package that starts clusters is not installed."""


@dataclass(frozen=True)
class TestCluster:
    """A running cluster. Clients that it makes are to be closed by the test."""

    __test__ = False  # its name begins as those of test classes do

    local: LocalCluster
    """To kill and restart processes: see ``headrace_cli.local.LocalCluster``."""

    @property
    def bootstrap_servers(self) -> list[str]:
        """The brokers' addresses."""
        return self.local.bootstrap_servers

    @property
    def admin_url(self) -> str:
        """The REST service's base URL."""
        return self.local.admin_url

    @property
    def authorization(self) -> dict[str, str]:
        """The header that requests to ``admin_url`` need; none where the cluster is open."""
        return self.local.authorization

    def producer(self, **settings: Unpack[ProducerSettingsDict]) -> Producer:
        """A producer on this cluster."""
        return Producer(self.local.address, **settings)

    def consumer(self, *topics: str, **settings: Unpack[ConsumerSettingsDict]) -> Consumer:
        """A consumer on this cluster; it reads from the beginning unless told otherwise."""
        settings.setdefault("auto_offset_reset", "earliest")
        return Consumer(*topics, bootstrap_servers=self.local.address, **settings)

    def log_watch(self, **settings: Unpack[ReadingSettingsDict]) -> LogWatch:
        """Looks at this cluster's topics."""
        return LogWatch(self.local.address, **settings)

    def range_reader(self, ranges: Iterable[tuple[str, int, int, int]], **settings: Any) -> RangeReader:
        """Reads ranges of offsets."""
        return RangeReader(self.local.address, ranges, **settings)

    def admin(self, **settings: Unpack[AdminSettingsDict]) -> AdminClient:
        """An admin client on this cluster."""
        return AdminClient(self.local.address, **settings)

    def unique_topic(self, prefix: str = "test", partitions: int = 1, **configs: str) -> str:
        """Create a topic that no other test has; settings are given with underscores: ``retention_ms="1000"``."""
        name = f"{prefix}-{next(_NUMBERS)}"
        with self.admin() as admin:
            admin.create_topic(name, partitions, configs={k.replace("_", "."): v for k, v in configs.items()})
        return name


@contextmanager
def started_cluster(
    directory: Path, *, brokers: int = 1, flush: str = "os", restart: bool = False, **options: Any
) -> Iterator[TestCluster]:
    """
    Run a cluster in ``directory`` while the block runs.

    Args:
        flush: ``os`` is quick; ``group`` syncs before each acknowledgement, as in production.
        restart: whether killed processes are started again.
        options: more of ``headrace_cli.local.LocalCluster``.

    Raises:
        ClusterUnavailable: headrace-cli is not installed.
    """
    try:
        from headrace_cli.local import LocalCluster
    except ImportError as error:
        raise ClusterUnavailable(
            "a real cluster is started by the package headrace-cli, which is not installed here "
            f"({error}); install it with: pip install 'headrace-cli[local]'"
        ) from error
    local = LocalCluster(directory, brokers=brokers, controllers=1, flush=flush, restart=restart, **options)
    local.start()
    try:
        yield TestCluster(local)
    finally:
        local.stop()
