"""
Options that several jobs have, as text of a command line to what the connector takes. Called by each job's ``job``.

Nothing here imports Spark, so that ``--help`` and wrong options need no JVM. What the connector would refuse in the
middle of a query is refused here, by asking its own rules.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from headrace_common.core.errors import HeadraceError, InvalidConfig
from headrace_spark.adapters.sdk_address import add_address
from headrace_spark.core.option_table import Mode
from headrace_spark.core.options import ConnectorOptions

BOOTSTRAP: Final = "kafka.bootstrap.servers"
AVAILABLE_NOW: Final = "available-now"
BATCH: Final = "batch"
TIME_UNITS: Final = ("s", "ms", "us")
"""Of times that are whole numbers since 1970."""
Group = argparse._ArgumentGroup
EXIT_WRONG: Final = 2
"""The exit status for options that are wrong; argparse has the same."""
EXIT_FAILED: Final = 3
"""The exit status of a job that began and failed."""
_INTERVAL: Final = re.compile(r"[1-9][0-9]{0,8} (millisecond|second|minute|hour|day)s?")
_SECONDS: Final = {"millisecond": 0.001, "second": 1, "minute": 60, "hour": 3_600, "day": 86_400}


@dataclass(frozen=True, slots=True)
class Trigger:
    """When micro-batches run."""

    interval: str | None
    """Every so often, for good; None: what is there now, then the job ends."""


def job_parser(name: str, summary: str) -> argparse.ArgumentParser:
    """A parser for one job; options must be written in full."""
    return argparse.ArgumentParser(
        prog=f"headrace job run {name} --",
        description=summary,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_source(parser: argparse.ArgumentParser, *, isolation: str = "read_committed", stream: bool = True) -> None:
    """The cluster and topics to read."""
    group = parser.add_argument_group("source")
    _add_bootstrap(group)
    group.add_argument("--topic", metavar="NAME,…", help="topics to read")
    group.add_argument("--topic-pattern", metavar="REGEX", help="or: all topics whose whole name matches")
    group.add_argument(
        "--isolation",
        choices=("read_committed", "read_uncommitted"),
        default=isolation,
        help="whether records of open and aborted transactions are read (default: %(default)s)",
    )
    if stream:
        group.add_argument(
            "--starting-offsets",
            default="earliest",
            metavar="WHERE",
            help="where a new query begins: earliest (default), latest, or JSON; the checkpoint decides afterwards",
        )
        group.add_argument("--max-offsets-per-trigger", metavar="N", help="at most so many records per micro-batch")
        group.add_argument(
            "--fail-on-data-loss",
            choices=("true", "false"),
            default="true",
            help="whether records that are gone before they were read fail the job (default: true)",
        )
    _add_source_option(group)


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """The cluster to read, where a connector names the topics."""
    group = parser.add_argument_group("source")
    _add_bootstrap(group)
    _add_source_option(group)


def _add_bootstrap(group: Group) -> None:
    group.add_argument(
        "--bootstrap",
        metavar="HOST:PORT,…",
        help="brokers of the cluster (default: as every client finds it, HEADRACE_BOOTSTRAP first)",
    )


def _add_source_option(group: Group) -> None:
    group.add_argument(
        "--source-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other option of the connector's source; may be given more than once",
    )


def add_sink(parser: argparse.ArgumentParser, *, topic_required: bool) -> None:
    group = parser.add_argument_group("sink")
    group.add_argument("--output-topic", required=topic_required, metavar="NAME", help="topic to write")
    group.add_argument(
        "--output-bootstrap", metavar="HOST:PORT,…", help="brokers of another cluster (default: as --bootstrap)"
    )
    group.add_argument(
        "--sink-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other option of the connector's sink; may be given more than once",
    )


def add_stream(parser: argparse.ArgumentParser, *, batch: bool = False) -> None:
    group = parser.add_argument_group("query")
    group.add_argument("--checkpoint", required=not batch, metavar="PATH", help="where the query keeps its positions")
    words = f"{AVAILABLE_NOW}: read what is there, then end"
    group.add_argument(
        "--trigger",
        default=AVAILABLE_NOW,
        metavar="WHEN",
        help=f"{words} (default){f'; {BATCH}: one batch query, without a checkpoint' if batch else ''}; "
        "or how often a batch begins, for good, as in '10 seconds'",
    )


def add_schema(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """What fields values have, that are JSON."""
    group = parser.add_argument_group("values")
    either = group.add_mutually_exclusive_group(required=required)
    either.add_argument("--schema", metavar="DDL", help="fields, as in 'id bigint NOT NULL, name string'")
    either.add_argument("--schema-file", metavar="FILE", help="or a file with DDL, Spark's JSON or a JSON Schema")


def trigger_of(text: str) -> Trigger:
    """
    Read ``--trigger``.

    Raises:
        InvalidConfig: it is neither the word nor an interval.
    """
    if text == AVAILABLE_NOW:
        return Trigger(None)
    if not _INTERVAL.fullmatch(text):
        raise InvalidConfig(f"--trigger takes {AVAILABLE_NOW}, or an interval as '10 seconds', not {text[:50]!r}")
    return Trigger(text)


def interval_s(interval: str) -> float:
    """The seconds of an interval of ``trigger_of``."""
    number, unit = interval.split()
    return int(number) * _SECONDS[unit.removesuffix("s")]


def duration_s(option: str, text: str) -> float:
    """
    The seconds of a time as '1 day'.

    Raises:
        InvalidConfig: it is none.
    """
    if not _INTERVAL.fullmatch(text):
        raise InvalidConfig(f"{option} takes a time as '1 day', not {text[:50]!r}")
    return interval_s(text)


def cluster_options(args: argparse.Namespace) -> dict[str, str]:
    """
    What the connector's source gets of ``add_cluster``; topics come later.

    Raises:
        InvalidConfig: the environment or a profile names the cluster wrongly.
    """
    return _cluster(args.bootstrap) | parse_values("--source-option", args.source_option)


def source_options(args: argparse.Namespace, mode: Mode, *, headers: bool = False) -> dict[str, str]:
    """
    What the connector's source gets.

    Raises:
        InvalidConfig: the connector would refuse it, or no topic is named.
    """
    if bool(args.topic) == bool(args.topic_pattern):
        raise InvalidConfig("name what to read with one of --topic and --topic-pattern")
    named = {"subscribe": args.topic} if args.topic else {"subscribePattern": args.topic_pattern}
    options = {**_cluster(args.bootstrap), **named, "kafka.isolation.level": args.isolation}
    if headers:
        options["includeHeaders"] = "true"
    if mode is Mode.READ_STREAM:
        options |= {"startingOffsets": args.starting_offsets, "failOnDataLoss": args.fail_on_data_loss}
        if args.max_offsets_per_trigger:
            options["maxOffsetsPerTrigger"] = args.max_offsets_per_trigger
    return _merge(options, parse_values("--source-option", args.source_option), mode)


def sink_options(args: argparse.Namespace, mode: Mode) -> dict[str, str]:
    """
    What the connector's sink gets.

    Raises:
        InvalidConfig: the connector would refuse it.
    """
    options = _cluster(args.output_bootstrap or args.bootstrap)
    if args.output_topic:
        options["topic"] = args.output_topic
    return _merge(options, parse_values("--sink-option", args.sink_option), mode)


def _cluster(bootstrap: str | None) -> dict[str, str]:
    """Raises: InvalidConfig: the environment or a profile names it wrongly."""
    return add_address({BOOTSTRAP: bootstrap} if bootstrap else {})


def _merge(options: dict[str, str], more: Mapping[str, str], mode: Mode) -> dict[str, str]:
    named = {name.lower(): name for name in options}
    for name, value in more.items():
        options[named.get(name.lower(), name)] = value
    ConnectorOptions.parse(options, mode)
    return options


def parse_values(option: str, given: Sequence[str]) -> dict[str, str]:
    """
    Read options of the form NAME=VALUE.

    Raises:
        InvalidConfig: one has no name or no '='.
    """
    found: dict[str, str] = {}
    for each in given:
        name, separator, value = each.partition("=")
        if not separator or not name.strip():
            raise InvalidConfig(f"{option} takes NAME=VALUE, and got {name[:50]!r} without '='")
        found[name.strip()] = value
    return found


def names(text: str | None) -> tuple[str, ...]:
    """A list that is separated by commas."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def exit_status(job: Callable[[], int]) -> int:
    """
    Run a job and tell in a sentence what went wrong; a stack of Spark's stands in its log.

    Returns:
        What the job returns, or one of ``EXIT_WRONG`` and ``EXIT_FAILED``.
    """
    try:
        return job()
    except InvalidConfig as error:
        return _report(str(error), EXIT_WRONG)
    except HeadraceError as error:
        return _report(str(error), EXIT_FAILED)
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "py4j"):
            raise
        return _report(
            "pyspark is not installed here; install it with: pip install 'headrace-spark[spark]'", EXIT_FAILED
        )


def begin(main: Callable[[], int]) -> NoReturn:
    """Run a job's ``main`` as a program, with a line in the log for each micro-batch."""
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("headrace_jobs").setLevel(logging.INFO)
    sys.exit(main())


def _report(text: str, status: int) -> int:
    sys.stderr.write(f"error: {text}\n")
    return status
