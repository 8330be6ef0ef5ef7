"""``headrace connect verify``: begins a verification on the workers, waits for it, and ends it with Ctrl+C."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, Final

import typer

from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.interrupts import end_if_interrupted, held
from headrace_cli.output import Output, format_count, moment_for_people
from headrace_cli.session import Session
from headrace_cli.workers import Name, Url, Wait, Workers, refusal

LOOK_SECONDS: Final = 0.1
"""Until it is looked at first; then each time half as long again."""
LOOK_SECONDS_MAX: Final = 2.0
SAY_SECONDS: Final = 10.0
"""Between two lines that say how far it is."""
LOST_SECONDS: Final = 60.0
"""So long it is asked for while nobody answers, as when another worker is about to lead."""
_WRONG: Final = ("missing", "different", "unexpected")


def verify(
    session: Session,
    name: Name,
    *,
    topics: Annotated[
        list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Of those that it reads; else all")
    ] = None,
    records: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="The newest of each partition that the target has, as offsets")
    ] = 100_000,
    repair: Annotated[
        bool, typer.Option("--repair", help="Write what is missing or different; the connector must be stopped")
    ] = False,
    all_ranges: Annotated[bool, typer.Option("--all", help="Show ranges that agree too")] = False,
    url: Url = None,
) -> None:
    """
    Compare the target of a sink with its topics, range by range of offsets. The connector may run. Ctrl+C ends it.

    Ends with 1 where rows are missing, different or unexpected, and were not repaired.
    """
    body = {"topics": topics or [], "records": records, "repair": repair}
    found = _carry_out(session, Workers(url, session.cluster), name, body)
    if session.output is Output.TABLE:
        _show(session, name, found, all_ranges=all_ranges)
    else:
        session.show(found)
    if not found["agrees"]:
        raise typer.Exit(ExitCode.FAILED)


def verifications(
    session: Session,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Of the connector; else of all")] = None,
    *,
    url: Url = None,
) -> None:
    """List verifications: those that run, and the newest that have ended. The newest is first."""
    path = ["v1", "verifications"] if name is None else ["v1", "connectors", name, "verify"]
    found = Workers(url, session.cluster).get(*path)["verifications"]
    if session.output is not Output.TABLE:
        session.show({"verifications": found})
        return
    rows = [{**one, "at": moment_for_people(one["at"]), "how": _how(one)} for one in found]
    session.show(rows, "id", "connector", "at", "repair", "state", "how", empty="there are none")


def _how(one: Mapping[str, Any]) -> str:
    if one["error"] is not None:
        return str(one["error"]["detail"])
    return how_far(one["progress"]) if one["agrees"] is None else _said(one)


def _said(found: Mapping[str, Any]) -> str:
    return "they agree" if not found["wrong"] else f"{found['wrong']} wrong, {found['repaired']} repaired"


def _carry_out(session: Session, workers: Workers, name: str, body: Mapping[str, Any]) -> Any:
    """
    The result.

    Raises:
        CommandFailed: there is none.
        KeyboardInterrupt: somebody has ended it; the workers are told.
    """
    path = ["v1", "connectors", name, "verify"]
    begun = False
    try:
        with held(signal.SIGINT, signal.SIGTERM):  # what has begun has a name, and can be ended
            path.append(workers.post(*path, body=body)["id"])
            begun = True
        return _wait(session, workers, name, path)
    except KeyboardInterrupt:
        if begun:
            with suppress(CommandFailed):
                workers.delete(*path)
        raise


def _wait(session: Session, workers: Workers, name: str, path: list[str]) -> Any:
    pause, say_at = LOOK_SECONDS, time.monotonic() + SAY_SECONDS
    while True:
        end_if_interrupted()
        time.sleep(pause)
        pause = min(pause * 1.5, LOOK_SECONDS_MAX)
        one = Wait(time.monotonic() + LOST_SECONDS, also_nobody=True).ask(lambda: workers.get(*path))
        if one["error"] is not None:
            raise refusal(one["error"]["status"], one["error"]["detail"])
        if one["result"] is not None:
            return one["result"]
        if time.monotonic() >= say_at:
            session.say(f"{name}: {how_far(one['progress'])}")
            say_at = time.monotonic() + SAY_SECONDS


def how_far(progress: Mapping[str, int]) -> str:
    """A verification, for people."""
    offsets, scanned, compared = progress["offsets"], progress["scanned"], progress["compared"]
    if not offsets:
        return "the target is asked for its positions"
    if scanned < offsets and scanned and not compared:
        return f"{scanned:,} of {offsets:,} offsets read, to know the last record of each key"
    return f"{compared:,} of {offsets:,} offsets compared"


def _show(session: Session, name: str, found: Mapping[str, Any], *, all_ranges: bool) -> None:
    rows = [
        {**one, "partition": f"{one['topic']}-{one['partition']}", "examples": ", ".join(map(str, one["examples"]))}
        for one in found["ranges"]
        if all_ranges or any(one[what] for what in _WRONG)
    ]
    if rows:
        session.show(rows, "partition", "first", "end", "records", "refused", *_WRONG, "repaired", "examples")
    if not found["ranges"]:
        session.say(f"{name}: its target has no position of its topics yet, so there is nothing to compare")
        return
    compared = format_count(sum(one["records"] for one in found["ranges"]), "record")
    session.say(f"{name}: {compared} compared with rows of the target: {_said(found)}")
