"""Finds the app in a program: a file, or a module that can be imported, and the name of the app in it."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType

from headrace_common.core.errors import HeadraceError
from headrace_common.runtime.modules import load_file
from headrace_streams.core.errors import NotAllowed
from headrace_streams.dsl.app import LOADING, App


def load(program: str) -> App:
    """
    The app of ``billing.py``, ``billing.py:app``, ``package.billing`` or ``package.billing:app``.

    Raises:
        NotAllowed: there is no such program, it fails or runs its app itself, or there is not exactly one app in it.
    """
    where, _, name = program.partition(":")
    if not where:
        raise NotAllowed(f"{program!r} names no program: give a file or a module, as billing.py or package.billing")
    loading = LOADING.set(True)
    try:
        module = _load_file(Path(where)) if where.endswith(".py") else _load_module(where)
    except HeadraceError:
        raise
    except (Exception, SystemExit) as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        said, place = repr(error), f"{at.filename}:{at.lineno}"
        if isinstance(error, SyntaxError):
            said, place = f"{type(error).__name__}: {error.msg}", f"{error.filename}:{error.lineno}"
        raise NotAllowed(f"the program {where} cannot be loaded: {said} at {place}") from error
    finally:
        LOADING.reset(loading)
    if name:
        app = getattr(module, name, None)
        if not isinstance(app, App):
            raise NotAllowed(f"{where} has no App called {name!r}; {_apps_text(where, module)}")
        return app
    apps = _apps(module)
    if len(apps) != 1:
        raise NotAllowed(f"{where} must have one App to be run; {_apps_text(where, module)}")
    return next(iter(apps.values()))


def _apps(module: ModuleType) -> dict[str, App]:
    return {name: value for name, value in vars(module).items() if isinstance(value, App)}


def _apps_text(where: str, module: ModuleType) -> str:
    apps = _apps(module)
    if not apps:
        return "it has none: write app = App('NAME') in it, at the top level"
    return f"it has {', '.join(apps)}: name one, as in {where}:{next(iter(apps))}"


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise NotAllowed(f"there is no file {path}")
    return load_file(path)


def _load_module(name: str) -> ModuleType:
    sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        raise NotAllowed(f"there is no module {name!r}; a file ends in .py: {name}.py") from None
