"""
How a Python program is given to Spark from this machine, and what comes back from it.

Spark's own ``spark-submit`` does the work. Which Spark: the ``pyspark`` that is installed beside this command, else the
distribution in ``SPARK_HOME``, as in a cluster's images.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final

from headrace.finding import BOOTSTRAP_VARIABLE, ClusterAddress
from headrace_cli.child_environment import child_environment
from headrace_cli.exits import CommandFailed
from headrace_cli.interrupts import held, interruptible
from headrace_cli.spark.java import VERSION_MIN, find_java

HERE: Final = Path(__file__).parent
ENTRY: Final = HERE / "entry" / "headrace_job.py"
QUERY: Final = HERE / "entry" / "headrace_streams_query.py"
QUIET: Final = HERE / "log4j2.properties"
GET_SPARK: Final = "`make setup-spark` installs it here, the package pyspark brings it elsewhere."
STOP_SECONDS: Final = 30.0
"""How long an interrupted program has for its end, before it is killed."""
RELAY_SECONDS: Final = 1.0
"""What outlives the program may hold its errors open."""
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
SAID_BY_JAVA: Final = frozenset({b"WARNING: Using incubator modules: jdk.incubator.vector\n"})
"""Each start of a Spark writes it, whatever its log is told."""
_PANDAS: Final = "ignore:PySpark does not yet fully support pandas:FutureWarning"


@dataclass(frozen=True, slots=True)
class SparkHere:
    """What is needed to run one."""

    home: Path
    java: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to run, and how."""

    file: Path
    arguments: Sequence[str] = ()
    name: str
    """As which Spark shows it."""
    master: str = "local[*]"
    conf: Mapping[str, str]
    """Spark's settings; they win over ours."""
    cluster: ClusterAddress
    """For the program's environment: where it is, whom to trust there and what to show."""
    verbose: bool = False
    """Spark's log as Spark is configured; else warnings only."""

    @property
    def local(self) -> bool:
        """Whether all of it runs on this machine."""
        return self.master.startswith("local")


def find_spark(env: Mapping[str, str]) -> SparkHere:
    """
    Look for both.

    Raises:
        CommandFailed: one is missing; the text says how to get it.
    """
    home = spark_home(env)
    if home is None:
        raise CommandFailed("Spark is not installed beside this command", hint=GET_SPARK)
    java = find_java(env)
    if java is None:
        raise CommandFailed(
            f"Spark needs Java {VERSION_MIN} or newer, and there is none",
            hint="Install openjdk-17-jre-headless (`make setup-spark` does), or set JAVA_HOME.",
        )
    return SparkHere(home, java)


def spark_home(env: Mapping[str, str]) -> Path | None:
    """Where ``bin/spark-submit`` and the jars are."""
    spec = find_spec("pyspark")
    beside = [Path(spec.origin).parent] if spec is not None and spec.origin is not None else []
    told = [Path(env["SPARK_HOME"])] if env.get("SPARK_HOME") else []
    homes = (home for home in beside + told if (home / "bin" / "spark-submit").is_file() and (home / "jars").is_dir())
    return next(homes, None)


def command_of(program: Program, spark: SparkHere) -> list[str]:
    """The words of the command; what is repeated counts as said last."""
    ours = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"} if program.local else {}
    words = [str(spark.home / "bin" / "spark-submit"), "--master", program.master, "--name", program.name]
    for name, value in (ours | dict(program.conf)).items():
        words += ["--conf", f"{name}={value}"]
    return [*words, str(program.file), *program.arguments]


def environment_of(program: Program, spark: SparkHere, env: Mapping[str, str], python: str) -> dict[str, str]:
    """
    The environment of the command: this Python on this machine. On other machines ``python3``, or what the user says:
    the path of this one means nothing there.
    """
    found = child_environment(program.cluster, env) | {
        "SPARK_HOME": str(spark.home),
        "JAVA_HOME": str(spark.java),
        "PYSPARK_DRIVER_PYTHON": python,
        BOOTSTRAP_VARIABLE: str(program.cluster),
    }
    if program.local:
        found["PYSPARK_PYTHON"] = python
        found.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if not program.verbose:
        options = [env.get("SPARK_SUBMIT_OPTS", ""), f"-Dlog4j2.configurationFile={QUIET.as_uri()}"]
        found["SPARK_SUBMIT_OPTS"] = " ".join(filter(None, options))
        found["PYTHONWARNINGS"] = ",".join(filter(None, [env.get("PYTHONWARNINGS", ""), _PANDAS]))
    return found


def run(program: Program, spark: SparkHere, env: Mapping[str, str], *, stdout: IO[bytes] | None = None) -> int:
    """
    Run it to its end and return its exit code, 128 and the signal's number if one ended it. Ctrl+C and SIGTERM reach
    it too, and the command waits for its end.

    Args:
        program: what and how.
        spark: with what.
        env: the environment of this process.
        stdout: where its output goes, its errors too; None: where ours go.
    """
    together = subprocess.STDOUT if stdout is not None else None
    errors = subprocess.PIPE if stdout is None and not program.verbose else together
    words, found = command_of(program, spark), environment_of(program, spark, env, sys.executable)
    process: subprocess.Popen[bytes] | None = None
    with interruptible(*SIGNALS):
        try:
            with held(*SIGNALS):
                process = subprocess.Popen(words, env=found, stdout=stdout, stderr=errors)
            with _relay_errors(process.stderr):
                code = process.wait()
        except KeyboardInterrupt:
            if process is not None:
                stop(process)
            raise
    return code if code >= 0 else 128 - code


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end, as Ctrl+C does; a second Ctrl+C, or half a minute, kills it."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_SECONDS)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        process.kill()
        process.wait()


@contextlib.contextmanager
def _relay_errors(errors: IO[bytes] | None) -> Iterator[None]:
    """Pass its errors on, without what Java says each time; None: they go where ours go."""

    def relay(lines: IO[bytes]) -> None:
        with contextlib.suppress(BrokenPipeError):
            for line in lines:
                if line not in SAID_BY_JAVA:
                    sys.stderr.buffer.write(line)
                    sys.stderr.buffer.flush()

    if errors is None:
        yield
        return
    thread = threading.Thread(target=relay, args=(errors,), name="spark-errors", daemon=True)
    thread.start()
    yield
    thread.join(RELAY_SECONDS)
