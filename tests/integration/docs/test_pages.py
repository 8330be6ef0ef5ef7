"""
Every block of the pages that a newcomer reads first does what it says, in its order, on a fresh cluster.

What needs Spark is in ``test_pages_with_spark.py``.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.transactions.postgres import started_postgres

from headrace_cli.local.ports import PortClaims

from .reader import ROOT, Reader, blocks_of, cluster_in, nothing_left_running

pytestmark = [pytest.mark.integration, pytest.mark.timeout(280)]

READY_S_MAX = 60
OF_MAKE = "the verbs of make are stages of the tests themselves"
OF_KUBERNETES = "needs Docker and a cluster of Kubernetes: tests/kubernetes"
OF_SPARK = "needs Spark: test_pages_with_spark.py"
ELSEWHERE = "another cluster, which is not here"


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    with nothing_left_running(tmp_path):
        yield tmp_path


def charged(directory: Path) -> bool:
    """Whether the group has committed all there is."""
    with cluster_in(directory).admin() as admin:
        return not any(lag.lag for lag in admin.group_lag("billing").values())


def written(directory: Path, topic: str, count: int) -> bool:
    """Whether so many committed records are there."""
    settings = {"isolation_level": "read_committed"}
    with cluster_in(directory).consumer(topic, **settings) as consumer:
        return len(consumer.read_to_end()) >= count


@pytest.mark.timeout(500)
def test_the_readme_and_then_the_quickstart(directory: Path) -> None:
    """One reader and one cluster for both: it is stopped by the last block of the second page."""
    reader = Reader(
        directory,
        left_out={
            "make run ": OF_MAKE,
            "SparkSession": OF_SPARK,
            "make images": OF_KUBERNETES,
        },
        endless={
            "charge(record.value)": lambda: charged(directory),
            "producer.transaction(consumer)": lambda: written(directory, "invoices", 2),
        },
    )
    reader.read("README.md")
    groups = {
        line.split()[0]: line.split()[1] for line in reader.said.splitlines() if line.startswith(("sh", "an", "au"))
    }
    assert groups == dict.fromkeys(("shipping", "analytics", "audit"), "2"), "every group gets every record"
    with cluster_in(directory).consumer("invoices", isolation_level="read_committed") as consumer:
        assert sorted(r.value for r in consumer.read_to_end()) == [b'{"total": 12.5}'] * 2, "once per input"
    check_streams(reader)
    check_quickstart(reader)


def check_streams(reader: Reader) -> None:
    """The program of streams, saved and run as the page says."""
    (program,) = (block.source for block in blocks_of("README.md") if "# totals.py" in block.source)
    (reader.directory / "totals.py").write_text(program)
    reader.shell("headrace topic create totals")
    with (
        reader.started("headrace streams run totals.py"),
        cluster_in(reader.directory).consumer("totals", isolation_level="read_committed") as consumer,
    ):
        (record,) = consumer.poll(timeout_ms=30_000)
    assert record.key == b"alice"
    assert record.value == b'{"customer":"alice","orders":2,"total":25.0}'


def check_quickstart(reader: Reader) -> None:
    """It needs nothing of what the README has made: it would do the same on a fresh cluster."""
    page = "docs/quickstart.md"
    typed = " ".join(block.source for block in blocks_of(page) if "def test_" not in block.source)
    with cluster_in(reader.directory).admin() as admin:
        made = {topic.name for topic in admin.list_topics()} | {group.group_id for group in admin.list_groups().groups}
    assert made >= {"orders", "invoices", "billing"}
    assert not made & set(re.findall(r"[\w-]+", typed)), f"{page} has names of its own"
    reader.left_out = {
        "make run": OF_MAKE,
        "kill -9 PID": "while `make run` runs, of a pid that the reader picks",
        "profile set staging": ELSEWHERE,
    }
    reader.endless = {}
    before = len(reader.said)
    reader.read(page)
    printed = Counter(line for line in reader.said[before:].splitlines() if line.startswith('{"total"'))
    assert printed['{"total": 3}'] == printed['{"total": 7}'] == 1, "the group gets two records, and then the rest"


@pytest.mark.parametrize(
    "page", ["docs/transactions.md", "docs/recipes-delivery.md", "docs/recipes-exactly-once.md", "docs/retention.md"]
)
def test_a_page_on_a_cluster_that_runs(directory: Path, page: str) -> None:
    reader = Reader(directory)
    reader.shell("headrace up --brokers 1 --detach")
    reader.read(page)


def test_from_postgres_to_a_lake(directory: Path) -> None:
    with started_postgres(wal_level="logical") as conninfo:
        parts = dict(part.split("=", 1) for part in conninfo.split())
        server = {"PGHOST": parts["host"], "PGPORT": parts["port"], "PGUSER": parts["user"], "PGDATABASE": "postgres"}
        reader = Reader(
            directory,
            left_out={"docker run": "a server of the test's own"},
            environment=server | {"PGPASSWORD": "secret"},
        )
        reader.read("docs/postgres-to-lake.md")
    lines = reader.said.splitlines()
    assert "Counter({'r': 1000, 'u': 10, 'd': 10, 'c': 1})" in lines, reader.said
    (total,) = {line for line in lines if line.endswith(" in all")}
    assert lines.count(total) == 2, "the lake has what the database has"
    assert total.startswith("991 orders, "), total


def test_a_web_hook(directory: Path) -> None:
    """The configuration is saved and run as the page says, on a port that is free here."""
    page, claims = "docs/connectors/http.md", PortClaims(f"{directory}/hook")
    port = str(claims.claim_free())
    text = (ROOT / page).read_text().replace("8088", port)
    (config,) = re.findall(r"^```yaml\n(# github\.yaml\n.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (directory / "github.yaml").write_text(config)
    begin, run, send = (block.source.replace("8088", port) for block in blocks_of(page))
    reader = Reader(directory)
    reader.shell(begin)
    with reader.started(run.partition("#")[0]):
        reader.shell(f"until curl -s http://127.0.0.1:{port}; do sleep 0.1; done")
        reader.shell(send)
    claims.close()
    assert "HTTP/1.1 202 Accepted" in reader.said
    assert reader.said.endswith('{"action":"opened"}\n'), reader.said


def test_the_first_program_of_streams_and_a_question_about_its_state(directory: Path) -> None:
    """The words are typed as the page says; the recipe asks while the program runs."""
    reader = Reader(directory)
    (program,) = (block.source for block in blocks_of("docs/streams.md") if "# wordcount.py" in block.source)
    (directory / "wordcount.py").write_text(program)
    reader.shell("headrace up --brokers 1 --detach")
    reader.shell("headrace topic create lines && headrace topic create counts")
    reader.shell("printf 'hello world\\nHello again\\n' | headrace produce lines")
    with reader.started("headrace streams run wordcount.py --query-listen 127.0.0.1:0"):
        end = time.monotonic() + READY_S_MAX
        while not written(directory, "counts", 3):
            assert time.monotonic() < end, "the words were not counted"
        said = reader.paste("docs/recipes-streams.md", 'Stores("wordcount")')
        assert said == "{'word': 'hello', 'n': 2}\n"


def test_a_block_that_fails_is_named_with_page_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the tests above can fail: of each kind of block, the second."""
    monkeypatch.setattr("tests.integration.docs.reader.ROOT", tmp_path)
    page = tmp_path / "page.md"
    for number, block in enumerate(
        [
            "```sh\nfalse\n```",
            "```python\n1 / 0\n```",
            "```python\n>>> 1\n2\n```",
            "```python\ndef test_it():\n    0 / 0\n```",
        ]
    ):
        page.write_text(f"# Page\n\n```python\ntext = 1\n```\n\n{block}\n")
        (directory := tmp_path / str(number)).mkdir()
        assert [found.line for found in blocks_of("page.md")] == [4, 8]
        with pytest.raises(AssertionError, match=r"page\.md:8 failed"):
            Reader(directory).read("page.md")
    with pytest.raises(AssertionError, match="no block with 'gone'"):
        Reader(tmp_path / "other", left_out={"gone": "it was there once"}).read("page.md")
