"""
Scenario of a release from before it was closed by default: open and in plain text, then closed in the steps of
docs/operations/upgrade.md, all of them under load.
"""

from __future__ import annotations

from typing import Final

from .kube import Failed
from .life import READ, RECORDS, WRITE, client, own
from .loading import Load
from .release import CHART, PLAIN
from .results import Result
from .stage import Stage


def closed_step_by_step(stage: Stage, result: Result) -> None:
    """
    Nothing stops, and clients of before feel nothing until it is closed. Records of before are there after it; who
    shows a key sees no error, and who comes in plain text or shows none is refused at the end.
    """
    with own(stage, "closing", "-f", str(CHART / "values-dev.yaml"), "--set", PLAIN) as here:
        here.release.install()
        result.figure("open: all pods ready", here.release.wait_rolled_out())
        for topic in ("kept", "others"):
            here.release.cli("topic", "create", topic, "-p", "3")
        with client(here, "plain") as plain:
            plain(WRITE.format(records=RECORDS))
            _refused(here, result, "tls.enabled=true,security.mode=closed", "beginning with tls.mode=allow")
            with here.loaded(result, suffix="-plain") as load:
                _step(here, result, load, "allow", "tls.enabled=true,tls.mode=allow,security.mode=open")
                _refused(here, result, "tls.enabled=true,security.mode=permissive", "does not become require at once")
                _step(here, result, load, "prefer", "tls.enabled=true,tls.mode=prefer,security.mode=permissive")
                _tell(result, "in plain text, before it is closed", plain(_WITHOUT_KEY), "wrote")
            _tell(result, "the report", _report(here), "plain text")
            with client(here) as known, client(here, "stranger") as stranger:
                with here.loaded(result) as load:
                    _tell(result, "permissive, without a key", stranger(_WITHOUT_KEY), "wrote")
                    _step(here, result, load, "closed", "tls.enabled=true,security.mode=closed")
                told = known(READ.format(records=RECORDS)).strip()
                result.figure("records of before", float(told), f"of {RECORDS}")
                if told != str(RECORDS):
                    result.problems.append(f"{told} of {RECORDS} records of before are there")
                _tell(result, "closed, without a key", stranger(_WITHOUT_KEY), "Unauthenticated")
                _tell(result, "closed, in plain text", plain(_WITHOUT_KEY), "TLS")


def _step(here: Stage, result: Result, load: Load, what: str, values: str) -> None:
    with result.window(what):
        _set(here, values)
        here.settle(result, load, what)


def _report(here: Stage) -> str:
    """It ends with 1 where there is something to tell."""
    try:
        return here.release.cli("access", "report")
    except Failed as failed:
        return failed.said


def _tell(result: Result, what: str, said: str, wanted: str) -> None:
    result.notes.append(f"{what}: {said.strip()[:200]}")
    if wanted not in said:
        result.problems.append(f"{what}: {said}")


def _set(here: Stage, values: str) -> None:
    place = max(n for n, word in enumerate(here.release.values) if word.startswith("tls.enabled="))
    here.release.values[place] = values
    here.release.upgrade()


def _refused(here: Stage, result: Result, values: str, says: str) -> None:
    """While its pods run it is not done at once."""
    before = list(here.release.values)
    try:
        _set(here, values)
    except Failed as failed:
        if says not in failed.said:
            result.problems.append(f"{values} is refused with {failed.said[-300:]}")
    else:
        result.problems.append(f"{values} is not refused while pods run without TLS")
    here.release.values[:] = before


_WITHOUT_KEY: Final = """
import os
os.environ.pop("HEADRACE_API_KEY_FILE", None)
import headrace
try:
    with headrace.Producer() as producer:
        print("wrote", producer.send("others", b"a record").result(30))
except Exception as error:
    print(type(error).__name__, error)
"""
