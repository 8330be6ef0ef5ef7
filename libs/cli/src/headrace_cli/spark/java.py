"""
Which Java Spark can use here: ``JAVA_HOME``, the one on the PATH, or one below the usual directory; 17 or newer.

Asked by ``headrace job`` and by the demo. ``python -m headrace_cli.spark.java`` prints its home for ``tools`` and
``make``, or ends with 1 and prints nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

VERSION_MIN: Final = 17
INSTALLED: Final = Path("/usr/lib/jvm")
ANSWER_SECONDS: Final = 20.0
_QUOTED: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')

VersionOf = Callable[[Path], int | None]


def find_java(env: Mapping[str, str], installed: Path = INSTALLED, version_of: VersionOf | None = None) -> Path | None:
    """
    The home of the first that is new enough; None: there is none.

    Args:
        env: ``JAVA_HOME`` and ``PATH`` are looked at.
        installed: a directory with a Java per entry; the oldest that will do is taken.
        version_of: answers the major version of a home; asks the program itself unless given.
    """
    ask = version_of or version_at
    for home in _find_candidates(env):
        if (ask(home) or 0) >= VERSION_MIN:
            return home
    others = [(version, home) for home in _below(installed) if (version := ask(home) or 0) >= VERSION_MIN]
    return min(others)[1] if others else None


def version_at(home: Path) -> int | None:
    """The major version of the Java in ``home``; None if there is none that answers."""
    try:
        said = subprocess.run(
            [home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=ANSWER_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return version_in(said.stderr + said.stdout)


def version_in(text: str) -> int | None:
    """17 of ``openjdk version "17.0.15"``, 8 of ``java version "1.8.0_402"``."""
    found = _QUOTED.search(text)
    if found is None:
        return None
    return int(found[2]) if found[1] == "1" and found[2] else int(found[1])


def _find_candidates(env: Mapping[str, str]) -> Iterator[Path]:
    if env.get("JAVA_HOME"):
        yield Path(env["JAVA_HOME"])
    program = shutil.which("java", path=env.get("PATH", os.defpath))
    if program is not None:
        yield Path(program).resolve().parent.parent


def _below(installed: Path) -> list[Path]:
    return sorted(home for home in installed.glob("*") if (home / "bin" / "java").is_file())


if __name__ == "__main__":
    java_home = find_java(os.environ)
    if java_home is None:
        sys.exit(1)
    print(java_home)
