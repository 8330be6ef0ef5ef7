"""
Decides which copy of gRPC a process calls: the one it imported, or after a fork one of its own.

gRPC does not survive a fork once it was used: its threads are missing in the child, and every call there waits for
them. All that it keeps is in its one extension module, though, so a child that loads that module a second time, from
another file, has a gRPC that was never used. The copy is private: who else uses gRPC in the child is not concerned.

What tells kinds of gRPC's objects apart (errors, channels) asks ``library()`` for them and not ``grpc`` itself. It
costs a child about 30 ms and 17 MiB, with its first connection. Called by whoever opens a channel (``rpc/channels.py``)
and by those who read what calls raise.
"""

from __future__ import annotations

import errno
import importlib
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType
from typing import Any, Final

import grpc
import grpc.aio

from headrace_common.core.errors import Rejected

EXTENSION: Final = "grpc._cython.cygrpc"
"""The module that has all of gRPC's state."""


INSTEAD: Final[ContextVar[Any]] = ContextVar("headrace_grpc", default=None)
"""What stands where gRPC stands, for who runs a cluster in one process."""


class _Copy:
    """The copy that this process calls."""

    def __init__(self) -> None:
        self.grpc: Any = grpc
        self.modules: dict[str, ModuleType] = {}
        """Of a child's own; of the first process those that everybody imports."""
        self.pid = os.getpid()
        self.used = False
        """Whether this process, or the one it was forked from, has called it."""
        self.lock = threading.Lock()

    def renew(self) -> None:
        """After a fork another thread of the parent may have held the lock."""
        self.lock = threading.Lock()

    def own(self) -> None:
        """This is a child: load a copy, unless another thread just did."""
        with self.lock:
            if self.pid == os.getpid():
                return
            try:
                self.modules, self.used = _load(), False
                self.grpc = self.modules["grpc"]
            except ImportError as error:
                if self.used:
                    raise Rejected(
                        "this process was forked from one that had connections, and cannot load a gRPC of its own "
                        f"({error}); start it with multiprocessing.get_context('spawn'), or fork before the first "
                        "client is used"
                    ) from error
            self.pid = os.getpid()


_copy: Final = _Copy()


def library() -> Any:
    """
    The ``grpc`` package that this process may use. Any thread.

    Raises:
        Rejected: this is the child of a process that has used gRPC, and the machine does not let it load a copy.
        OSError: no file descriptor was free for it; it is tried again.
    """
    other = INSTEAD.get()
    if other is not None:
        return other
    if _copy.pid != os.getpid():
        _copy.own()
    return _copy.grpc


@contextmanager
def opening() -> Iterator[Any]:
    """``library()`` for a channel that is opened in the block: meanwhile gRPC imports more of its own, as it may."""
    own = library()
    _copy.used = True
    if not _copy.modules:
        yield own
        return
    with _copy.lock, _swap_modules(_copy.modules):
        yield own


def _load() -> dict[str, ModuleType]:
    """
    The modules of gRPC once more, from another file: the loader of the system loads no file twice.

    Raises:
        ImportError: neither memory nor a temporary directory can hold code here.
        OSError: no file descriptor is left.
    """
    extension = str(sys.modules[EXTENSION].__file__)
    said: list[str] = []
    for copied in (_in_memory, _in_directory):
        try:
            with copied(extension) as path:
                return _load_from(path)
        except (ImportError, OSError) as error:
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            said.append(str(error))
    raise ImportError("; ".join(said))


@contextmanager
def _in_memory(path: str) -> Iterator[str]:
    """A file without a name; what is loaded from it stays when it is closed."""
    if not hasattr(os, "memfd_create"):
        raise ImportError("no file can be made in memory")
    with open(os.memfd_create("headrace-grpc"), "wb") as copy, open(path, "rb") as source:
        shutil.copyfileobj(source, copy, 1 << 20)
        copy.flush()
        yield f"/proc/self/fd/{copy.fileno()}"


@contextmanager
def _in_directory(path: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="headrace-grpc-") as directory:
        yield shutil.copy(path, directory)


def _load_from(path: str) -> dict[str, ModuleType]:
    modules: dict[str, ModuleType] = {}
    finder = _Finder(path)
    sys.meta_path.insert(0, finder)
    try:
        with _swap_modules(modules):
            for name in ("grpc", "grpc.aio", "grpc._channel"):
                importlib.import_module(name)
    finally:
        sys.meta_path.remove(finder)
    return modules


@contextmanager
def _swap_modules(modules: dict[str, ModuleType]) -> Iterator[None]:
    """Meanwhile ``import grpc`` gives these, and they grow; those that others have imported stay what they are."""
    others = _list_loaded()
    for name in others:
        del sys.modules[name]
    sys.modules.update(modules)
    try:
        yield
    finally:
        modules.update(_list_loaded())
        for name in modules:
            del sys.modules[name]
        sys.modules.update(others)


def _list_loaded() -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if name == "grpc" or name.startswith("grpc.")}


class _Finder(MetaPathFinder):
    """Finds the extension at ``path``; all else is found as ever."""

    def __init__(self, path: str) -> None:
        self._path = path

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != EXTENSION:
            return None
        return spec_from_file_location(name, self._path, loader=ExtensionFileLoader(name, self._path))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_copy.renew)
