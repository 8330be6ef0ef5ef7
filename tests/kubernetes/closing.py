"""
Scenario of a release from before it was closed by default: open and in plain text, then closed in the three steps of
docs/operations/upgrade.md. The first one stops it; the others are under load.
"""

from __future__ import annotations

from typing import Final

from .kube import Failed, wait_until
from .life import READ, RECORDS, WRITE, Ask, client, own
from .release import CHART, COMPONENT, PLAIN
from .results import Result
from .stage import Stage

GONE_S: Final = 180.0


def closed_step_by_step(stage: Stage, result: Result) -> None:
    """Records of before are there after it; who shows a key sees no error, and who shows none is refused at the end."""
    with own(stage, "closing", "-f", str(CHART / "values-dev.yaml"), "--set", PLAIN) as here:
        here.release.install()
        result.figure("open: all pods ready", here.release.wait_rolled_out())
        for topic in ("kept", "others"):
            here.release.cli("topic", "create", topic, "-p", "3")
        with client(here) as ask:
            ask(WRITE.format(records=RECORDS))
        _refused(here, result, "tls.enabled=true,security.mode=closed", "run without TLS")
        _stop(here)
        _set(here, "tls.enabled=true,security.mode=permissive")
        result.figure("TLS and permissive: all pods ready", here.release.wait_rolled_out())
        with client(here) as known, client(here, "stranger") as stranger:
            with here.loaded(result) as load:
                told = stranger(_WITHOUT_KEY)
                result.notes.append(f"permissive, without a key: {told.strip()[:200]}")
                if "wrote" not in told:
                    result.problems.append(f"a permissive cluster refused somebody: {told}")
                with result.window("permissive → closed"):
                    _set(here, "tls.enabled=true,security.mode=closed")
                    here.settle(result, load, "permissive → closed")
            _ends(result, known, stranger)


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


def _stop(here: Stage) -> None:
    """All but etcd."""
    chosen = f"{here.release.selector},{COMPONENT}!=etcd"
    here.kube.kubectl("scale", "statefulset", "--replicas=0", "-l", chosen)
    wait_until("all but etcd has stopped", lambda: len(here.release.pods()) == len(here.release.pods("etcd")), GONE_S)


def _ends(result: Result, known: Ask, stranger: Ask) -> None:
    told = known(READ.format(records=RECORDS)).strip()
    result.figure("records of before", float(told), f"of {RECORDS}")
    if told != str(RECORDS):
        result.problems.append(f"{told} of {RECORDS} records of before are there")
    said = stranger(_WITHOUT_KEY)
    result.notes.append(f"closed, without a key: {said.strip()[:200]}")
    if "Unauthenticated" not in said:
        result.problems.append(f"closed, without a key: {said}")


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
