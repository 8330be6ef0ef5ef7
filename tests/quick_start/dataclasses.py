"""
In the path of processes that tests start, before ``dataclasses`` itself, and the same but for this: what it compiles
for each class one process compiles, and the others find it, as they find the bytecode of modules.

Python writes the methods of each dataclass as text and compiles them at each start of each process: a fifth of what a
command or a worker of Streams takes, whole, and near half of the imports of a service. The code is kept by its whole
text, so none is ever out of date.
"""

import atexit
import builtins
import marshal
import os
import sys
from importlib.machinery import SourceFileLoader

_ITSELF = os.path.join(os.path.dirname(os.__file__), "dataclasses.py")
_PROGRAM = "".join(sys.orig_argv[sys.orig_argv.index("-m") + 1 :][:1]) if "-m" in sys.orig_argv else "others"
"""Each module that is run has a file of its own, so none reads what only others need."""
_KEPT = os.path.join(
    os.path.dirname(__file__), "__pycache__", f"methods.{os.path.basename(_PROGRAM)}.{sys.implementation.cache_tag}"
)
_WORTH_WRITING = 20
"""So many new texts; a program of a test has fewer."""
_LARGEST = 16 << 20
"""Bytes; a larger file begins anew."""

builtins.exec(SourceFileLoader(__name__, _ITSELF).get_code(__name__), globals())


def _read() -> dict[str, bytes]:
    try:
        with open(_KEPT, "rb") as file:
            found: dict[str, bytes] = marshal.load(file)
    except (OSError, EOFError, ValueError, TypeError):
        return {}
    return found


def _write() -> None:
    if len(_new) < _WORTH_WRITING or os.getpid() != _BY:
        return
    whole = marshal.dumps(_read() | _new)
    part = f"{_KEPT}.{_BY}"
    try:
        os.makedirs(os.path.dirname(_KEPT), exist_ok=True)
        with open(part, "wb") as file:
            file.write(whole if len(whole) <= _LARGEST else marshal.dumps(_new))
        os.replace(part, _KEPT)
    except OSError:
        pass  # another user's, or a disk that a test has filled


_BY = os.getpid()
_known = _read()
_new: dict[str, bytes] = {}
atexit.register(_write)


def exec(text, names, into):  # what the functions above call
    kept = _known.get(text) or _new.get(text)
    if kept is None:
        code = compile(text, "<string>", "exec", dont_inherit=True)
        _new[text] = marshal.dumps(code)
    else:
        code = marshal.loads(kept)
    builtins.exec(code, names, into)
