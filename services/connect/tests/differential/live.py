"""
Makes the calls to a real worker of ours, on a cluster of its own, and says where it answers otherwise than Kafka did.

    python -m services.connect.tests.differential.live
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from services.connect.tests.differential.calls import CALLS, Call
from services.connect.tests.differential.differences import DIFFERENCES, LIVE
from services.connect.tests.differential.record import ask
from services.connect.tests.differential.test_differential import compare
from services.connect.tests.integration.processes import WorkerProcess

from headrace.testing import started_cluster

_MODULE: Final = "services.connect.tests.differential.lines"
_CLASSES: Final = ("FileStreamSourceConnector", "FileStreamSource", "FileStreamSink")


def main() -> int:
    lines: list[str] = []
    with (
        tempfile.TemporaryDirectory(prefix="connect-") as name,
        started_cluster(Path(name) / "data", closed=False) as cluster,  # Kafka's calls show no key
    ):
        folder = Path(name)
        file = folder / "lines.txt"
        file.write_text("".join(f"line {number}\n" for number in range(100)))
        with cluster.admin() as admin:
            admin.create_topic("lines", 1, 1)
        allowed = ",".join(f"{_MODULE}:{one}" for one in _CLASSES[1:])
        options = ["--plugins-allowed", allowed, "--files-allowed-paths", name]
        worker = WorkerProcess(cluster, "differential", folder, 0, *options)
        try:
            worker.until_ready()
            port = int(worker.id.rpartition(":")[2])
            for call in CALLS:
                found = compare(call, *ask(port, _named(call), str(file), ours=True))
                if bool(found) != (call.label in DIFFERENCES or call.label in LIVE):
                    lines += [f"{call.label}: {line}" for line in found or ["does not differ"]]
        finally:
            worker.end()
            print(worker.log[-3_000:], file=sys.stderr)
    print("\n".join(lines) or "ours answers as Kafka, but for the known differences")
    return 1 if lines else 0


def _named(call: Call) -> Call:
    """The call with our classes' names in the place of Kafka's."""

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: renamed(item) for key, item in value.items()}
        return f"{_MODULE}:{value}" if value in _CLASSES else value

    path = call.path
    for one in _CLASSES:
        path = path.replace(f"/connector-plugins/{one}/", f"/connector-plugins/{_MODULE}:{one}/")
    body = call.body if call.here is None else call.here
    return Call(call.label, call.method, path, renamed(body), dict(call.headers), call.until, call.until_status)


if __name__ == "__main__":
    sys.exit(main())
