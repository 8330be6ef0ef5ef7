"""Where files are: a directory of this machine, or what Arrow has a file system for. Only this package opens files."""

from __future__ import annotations

import os
from typing import Final

from pyarrow.fs import FileSystem, LocalFileSystem

from headrace_connect.connectors.places.bucket import storage_options as storage_options
from headrace_connect.connectors.places.local import LocalPlace
from headrace_connect.connectors.places.objects import ObjectPlace
from headrace_connect.connectors.places.port import OpenFile as OpenFile
from headrace_connect.connectors.places.port import Place as Place
from headrace_connect.connectors.places.port import Seen as Seen
from headrace_connect.connectors.places.port import retriable as retriable

_SCHEMES: Final = ("file", "s3", "gs", "gcs", "abfs", "abfss")


def check_url(url: str) -> None:
    """
    Raises:
        ValueError: it is no path or URL of a place. Nothing is asked of the place.
    """
    if not url:
        raise ValueError("path is empty")
    scheme, colon, rest = url.partition("://")
    if not colon:
        return
    if scheme not in _SCHEMES:
        raise ValueError(
            f"path {url!r} cannot be used; there are directories, s3://BUCKET/PATH, gs://BUCKET/PATH, "
            "abfs://CONTAINER@ACCOUNT/PATH and file:///PATH"
        )
    if not rest.strip("/") or (scheme != "file" and rest.startswith("/")):
        raise ValueError(f"path {url!r} names no bucket or directory")


def find_place(url: str) -> Place:
    """
    The place of a path or URL; may ask where its bucket is.

    Raises:
        RetriableError: not now.
    """
    with retriable(f"{url} cannot be used"):
        files, root = FileSystem.from_uri(url if "://" in url else os.path.abspath(url))
    return LocalPlace(files, root) if isinstance(files, LocalFileSystem) else ObjectPlace(files, root, url)
