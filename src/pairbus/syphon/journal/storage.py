"""The storage that a path or a URI names: a disk, a mounted store, or one that `pyarrow.fs` knows (S3, ADLS, HDFS)."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import Any

from pairbus.errors import OptionError

from .arrow_storage import ArrowStorage
from .local_storage import LocalStorage, MountStorage
from .storage_port import Storage

#: Mounts of Databricks that take a file as a whole. They can neither append to one nor link it.
WHOLE_FILE_MOUNTS = ("/dbfs/", "/Volumes/")
#: Arrow's stores that show an object only once it is whole.
_ATOMIC_SCHEMES = {"s3", "gs", "gcs", "abfs", "abfss"}
#: Spark's names of schemes -> Arrow's.
_ARROW_SCHEMES = {"s3a": "s3", "s3n": "s3"}
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?://([^/?]*))?([^?]*)(?:\?(.*))?", re.DOTALL)


def storage_at(folder: str) -> Storage:
    """Return the storage that a path or a URI names, without calling it; OptionError if none can keep a journal."""
    found = _URI.fullmatch(folder)
    if found is None:
        return _file_storage(folder)
    scheme, host, path, query = found[1].lower(), found[2] or "", found[3], found[4] or ""
    # Paths are taken literally, as Spark does: a % in them is a %.
    if scheme == "file":
        if host.lower() not in ("", "localhost"):
            raise OptionError("a journal cannot be kept on file:// of another host: write file:///…")
        return _file_storage(path)
    if scheme == "dbfs":
        return _file_storage(f"/dbfs/{path.lstrip('/')}")
    filesystem, prefix = _filesystem(_ARROW_SCHEMES.get(scheme, scheme), host, query)
    return ArrowStorage(filesystem, prefix + path.strip("/"), scheme in _ATOMIC_SCHEMES or scheme in _ARROW_SCHEMES)


def join(folder: str, name: str) -> str:
    bare, query = _split_query(folder)
    return f"{bare.rstrip('/')}/{name}{query}"


def split(path: str) -> tuple[str, str]:
    """Return the folder and the name that `join` made a path of."""
    bare, query = _split_query(path)
    folder, _, name = bare.rpartition("/")
    return (folder or ("/" if bare.startswith("/") else ".")) + query, name


def _split_query(path: str) -> tuple[str, str]:
    found = _URI.fullmatch(path)
    query = "" if found is None or found[4] is None else f"?{found[4]}"
    return path.removesuffix(query), query


def _file_storage(folder: str) -> LocalStorage:
    is_mount = f"{os.path.abspath(folder)}/".startswith(WHOLE_FILE_MOUNTS)
    return MountStorage(folder) if is_mount else LocalStorage(folder)


@lru_cache(maxsize=32)
def _filesystem(scheme: str, host: str, query: str) -> tuple[Any, str]:
    """Return Arrow's file system and the prefix of its paths. Cached: Arrow may call the store to find its region."""
    from pyarrow import fs

    rest = f"{host}/x" + (f"?{query}" if query else "")
    try:
        filesystem, path = fs.FileSystem.from_uri(f"{scheme}://{rest}")
    except ValueError as error:
        # Arrow's text may repeat the URI, and that may hold a key.
        text = str(error).replace(rest, "…").replace(query or rest, "…").replace(host or rest, "…")
        raise OptionError(f"no journal can be kept on {scheme}://: {text}") from None
    return filesystem, path[:-1]
