"""
What a service is started with that is to have other constants: ``running_with.py MODULE:NAME=VALUE ... -- PYTHON -P -m
MODULE ...``. A value is of the type of the one that it takes the place of.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path


def running_with(constants: Mapping[str, object]) -> tuple[str, ...]:
    """The launcher of a process of a local cluster; names are ``MODULE:NAME``."""
    given = (f"{name}={value}" for name, value in constants.items())
    return (sys.executable, "-P", str(Path(__file__)), *given, "--")


def _main(arguments: list[str]) -> None:
    end = arguments.index("--")
    for constant in arguments[:end]:
        place, _, value = constant.partition("=")
        module, _, name = place.partition(":")
        found = importlib.import_module(module)
        setattr(found, name, type(getattr(found, name))(value))
    sys.argv = arguments[end + 4 :]  # after PYTHON -P -m
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(sys.argv[1:])
