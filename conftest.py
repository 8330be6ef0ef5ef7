"""
For all tests: no deadlines on properties (machines differ), and more examples on request; and what saves minutes: a
stage imports no file that has none of its tests, files that take long go first, garbage is looked for less, and what
tests start imports no pandas that it does not need.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), print_blob=True)
settings.register_profile("long", settings.get_profile("default"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

STAGES: Final = ("integration", "chaos", "spark", "chart", "kubernetes")
"""Marks that a stage of ``make test`` asks for, or leaves to another one."""
GARBAGE: Final = 50_000
"""So many new objects before garbage is looked for."""
OF_PROCESSES: Final = ("integration", "chaos")
"""Stages that start thousands of processes; those of Spark need pandas."""
WITHOUT_PANDAS: Final = str(Path(__file__).parent / "tests/without_pandas")
LONGEST: Final = (
    "tests/lab/test_run.py",
    "libs/streams/tests/spark/test_engines.py",
    "tests/integration/docs/test_pages_with_spark.py",
    "tests/chaos/spark/test_short.py",
    "libs/cli/tests/test_spark_real.py",
    "tests/chaos/replication/test_faults.py",
    "tests/chaos/streams/test_storm.py",
    "tests/chaos/test_kills.py",
    "tests/chaos/transactions/test_copies.py",
    "tests/chaos/transactions/test_units.py",
    "tests/chaos/transactions/test_history.py",
    "tests/chaos/transactions/test_prepared.py",
    "tests/chaos/compaction/test_compaction.py",
    "tests/chaos/held/test_up_killed.py",
    "tests/chaos/held/test_mixed_storm.py",
    "tests/chaos/held/test_all_killed.py",
    "tests/chaos/storage/test_storage_chaos.py",
    "tests/chaos/connect/test_large_snapshot.py",
    "tests/integration/local/test_real_cluster.py",
    "tests/integration/docs/test_pages.py",
    "tests/integration/streams/test_change_and_reset.py",
    "tests/integration/restore/test_restore.py",
    "tests/integration/groups/test_churn.py",
    "tests/integration/groups/test_moves.py",
    "tests/integration/transactions/test_steps.py",
    "tests/integration/streams/test_workers.py",
    "tests/integration/streams/test_exactly_once.py",
    "tests/integration/broker/test_broker_process.py",
    "tests/integration/connect/test_kills.py",
    "tests/integration/connect/test_csv_to_sqlite.py",
    "tests/integration/streams/test_joins.py",
    "tests/integration/streams/test_snapshots.py",
    "tests/integration/connect/test_mirror.py",
    "tests/integration/connect/test_hosts.py",
    "tests/integration/connect/test_lake_sink.py",
    "tests/integration/connect/test_postgres_cdc.py",
    "tests/integration/connect/test_postgres_cdc_kills.py",
    "tests/integration/connect/test_sql_sink_postgres.py",
    "tests/integration/connect/test_sql_sink_mariadb.py",
    "tests/compat/test_streams_versions.py",
    "tests/compat/test_upgrade.py",
    "tests/integration/local/test_lifecycle.py",
    "services/coordinator/tests/integration/test_transactions.py",
    "services/coordinator/tests/integration/test_offsets_in_transactions.py",
    "services/admin/tests/test_transaction_cluster.py",
    "tests/integration/admin/test_replication.py",
    "tests/integration/admin/test_admin.py",
    "tests/integration/broker/test_inventory_process.py",
    "tests/integration/nodes/test_leaving.py",
    "tests/integration/controller/test_failover.py",
    "tests/integration/sdk_replication/test_failover.py",
    "tests/integration/transactions/test_recipes.py",
    "tests/integration/retention/test_retention.py",
)
"""They begin first, the longest before the others: else one worker is still at them when the others have ended."""


def pytest_configure(config: pytest.Config) -> None:
    """Before anything is collected; the processes of xdist find what this one has set."""
    gc.set_threshold(GARBAGE)
    if not hasattr(config, "workerinput"):
        home = tempfile.mkdtemp(prefix="headrace-tests-")  # for the keys of the clusters that tests start
        os.environ["XDG_CONFIG_HOME"] = home
        config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))
    path = os.environ.get("PYTHONPATH", "")
    if config.option.markexpr.partition(" ")[0] in OF_PROCESSES and WITHOUT_PANDAS not in path:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (WITHOUT_PANDAS, path)))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files are not even imported that do not name the mark a stage asks for, or whose every test has one it leaves."""
    asked = _asked(config)
    if asked not in STAGES or not collection_path.match("test_*.py"):
        return None
    left = re.findall(r"not (\w+)", config.option.markexpr)
    wanted = (asked in left or _names(collection_path, asked)) and _mark_of_all(collection_path) not in left
    return None if wanted else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse what a stage would not find; the longest first."""
    for item in items:
        for mark in {mark.name for mark in item.iter_markers()}.intersection(STAGES):
            if not _names(item.path, mark):
                raise pytest.UsageError(f"{item.nodeid} has the mark {mark}, so its file must name mark.{mark}")
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))


def pytest_collection_finish() -> None:
    """What was imported and collected lives until the end: it is never looked through for garbage."""
    gc.collect()
    gc.freeze()


def _asked(config: pytest.Config) -> str:
    """The mark that tests are asked for by, or to be without; empty: another expression."""
    asked = re.fullmatch(r"(?:not )?(\w+)( and not \w+)*", config.option.markexpr)
    return "" if asked is None else asked[1]


@cache
def _names(path: Path, mark: str) -> bool:
    return f"mark.{mark}" in path.read_text("utf-8")


@cache
def _mark_of_all(path: Path) -> str | None:
    """The first mark that a file gives to all of its tests."""
    found = re.search(r"^pytestmark = \[?\s*pytest\.mark\.(\w+)", path.read_text("utf-8"), re.MULTILINE)
    return None if found is None else found[1]
