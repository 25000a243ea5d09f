"""Where journals are kept: a folder on a disk, or one that anything `pyarrow.fs` knows holds (S3, ADLS, HDFS …).

A place does the few things that journals and their folding need, each named for what it promises when it returns:
what was put is durable, what was published is there whole and was never anything else.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import pyarrow as pa

from pairbus.errors import OptionError

#: Mounts that take a file as a whole and cannot append to one, nor link.
WHOLE_FILE_MOUNTS = ("/dbfs/", "/Volumes/")
#: Stores where an object is not seen before it is whole.
_ATOMIC_SCHEMES = {"s3", "gs", "gcs", "abfs", "abfss"}
#: What Spark calls them, and what Arrow does.
_ARROW_SCHEMES = {"s3a": "s3", "s3n": "s3"}
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?://([^/?]*))?([^?]*)(?:\?(.*))?", re.DOTALL)
_UNSUPPORTED = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM}
TEMPORARY = ".tmp"


@dataclass(frozen=True, slots=True)
class Entry:
    """A file as a listing has it: its name below the place, its size, and when it was last changed (ns, UTC)."""

    name: str
    size: int
    changed: int | None


class Place(Protocol):
    """A folder and what can be done below it; names are relative, with slashes. Errors are OSErrors with a path."""

    #: Whether a file can grow here; whether of two that publish a file at once only one does.
    appends: bool
    excludes: bool

    def where(self, name: str) -> str:
        """The path of a file, for people to read; without what a URI may hold besides."""

    def folders(self) -> list[str]:
        """The folders directly below; none if the place does not exist."""

    def files(self, name: str) -> list[Entry]:
        """All files below a folder, named relative to it; none if it does not exist."""

    def is_file(self, name: str) -> bool:
        """Whether there is a file of that name."""

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """The bytes from `start` to `end`, or to the last one."""

    def put(self, name: str, data: bytes) -> None:
        """Write a file, durably; its folders are made. Another may see it before it is whole."""

    def publish(self, name: str, data: bytes) -> bytes:
        """Make a file that is never seen half, unless it exists; answers with what it holds."""

    def delete(self, name: str) -> None:
        """Remove a file if it is there."""

    def delete_folder(self, name: str) -> None:
        """Remove a folder and all that is in it, if it is there."""

    def delete_empty_folder(self, name: str, *, is_over: bool = False) -> None:
        """Remove a folder that holds nothing; one that does, stays. Where looking and removing are two steps it is only
        done if `is_over`: nobody writes there any more."""


def place_at(folder: str) -> Place:
    """The place that a path or a URI means; `OptionError` if it means none. Nothing is made or asked for yet."""
    found = _URI.fullmatch(folder)
    if found is None:
        return LocalPlace(folder)
    scheme, host, path, query = found[1].lower(), found[2] or "", found[3], found[4] or ""
    # Paths are taken as they stand, as Spark does: a % in them is a %.
    if scheme == "file":
        if host.lower() not in ("", "localhost"):
            raise OptionError("a journal cannot be kept on file:// of another host: write file:///…")
        return LocalPlace(path)
    if scheme == "dbfs":
        return LocalPlace(f"/dbfs/{path.lstrip('/')}")
    filesystem, prefix = _filesystem(_ARROW_SCHEMES.get(scheme, scheme), host, query)
    return ArrowPlace(filesystem, prefix + path.strip("/"), scheme in _ATOMIC_SCHEMES or scheme in _ARROW_SCHEMES)


def join(folder: str, name: str) -> str:
    """The path or URI of something in a folder."""
    found = _URI.fullmatch(folder)
    query = found[4] if found else None
    if query is None:
        return f"{folder.rstrip('/')}/{name}"
    return f"{folder[: -len(query) - 1].rstrip('/')}/{name}?{query}"


def split(path: str) -> tuple[str, str]:
    """The opposite of `join`."""
    found = _URI.fullmatch(path)
    query = found[4] if found else None
    bare = path if query is None else path[: -len(query) - 1]
    folder, _, name = bare.rpartition("/")
    return (folder or ("/" if bare.startswith("/") else ".")) + ("" if query is None else f"?{query}"), name


@lru_cache(maxsize=32)
def _filesystem(scheme: str, host: str, query: str) -> tuple[Any, str]:
    """Arrow's file system, and what a path gets in front there; made once, for it may ask a store where it is."""
    from pyarrow import fs

    rest = f"{host}/x" + (f"?{query}" if query else "")
    try:
        filesystem, path = fs.FileSystem.from_uri(f"{scheme}://{rest}")
    except ValueError as error:
        # What Arrow says may repeat the URI, which may hold a key.
        what = str(error).replace(rest, "…").replace(query or rest, "…").replace(host or rest, "…")
        raise OptionError(f"no journal can be kept on {scheme}://: {what}") from None
    return filesystem, path[:-1]


class LocalPlace:
    """A folder on a disk, or on a mount that looks like one."""

    def __init__(self, folder: str) -> None:
        self._folder = os.path.abspath(folder)
        self.appends = self.excludes = not f"{self._folder}/".startswith(WHOLE_FILE_MOUNTS)

    def where(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def folders(self) -> list[str]:
        try:
            with os.scandir(self._folder) as found:
                return sorted(each.name for each in found if each.is_dir())
        except FileNotFoundError:
            return []

    def files(self, name: str) -> list[Entry]:
        return list(self._walk(self.where(name), ""))

    def _walk(self, folder: str, prefix: str) -> Iterator[Entry]:
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda each: each.name)
        except (FileNotFoundError, NotADirectoryError):
            return
        for each in entries:
            try:
                if each.is_dir():
                    yield from self._walk(each.path, f"{prefix}{each.name}/")
                else:
                    status = each.stat()
                    yield Entry(prefix + each.name, status.st_size, status.st_mtime_ns)
            except FileNotFoundError:
                continue  # another has removed it meanwhile

    def is_file(self, name: str) -> bool:
        return os.path.isfile(self.where(name))

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        with open(self.where(name), "rb") as file:
            file.seek(start)
            return file.read() if end is None else file.read(max(0, end - start))

    def put(self, name: str, data: bytes) -> None:
        path = self.where(name)
        with named(path):
            self._write(path, data)
            self.sync_folder(os.path.dirname(path))

    def publish(self, name: str, data: bytes) -> bytes:
        path = self.where(name)
        temporary = f"{path}.{secrets.token_hex(4)}{TEMPORARY}"
        with named(path):
            self._write(temporary, data)
            try:
                _link(temporary, path)
            except FileExistsError:
                return self.read(name)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
            self.sync_folder(os.path.dirname(path))
        return data

    def _write(self, path: str, data: bytes) -> None:
        with self.create(path, "wb") as file:
            write_all(file.fileno(), data)
            self._sync(file.fileno())

    def create(self, path: str, mode: str) -> io.FileIO:
        """Open a file for writing; if its folder is missing, that is made first."""
        try:
            return io.FileIO(path, mode)
        except FileNotFoundError:
            self.make_folder(os.path.dirname(path))
            return io.FileIO(path, mode)

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError), named(self.where(name)):
            os.unlink(self.where(name))

    def delete_folder(self, name: str) -> None:
        for each in self.files(name):
            self.delete(f"{name}/{each.name}")
        self.delete_empty_folder(name)

    def delete_empty_folder(self, name: str, *, is_over: bool = False) -> None:
        try:
            os.rmdir(self.where(name))
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise

    def make_folder(self, folder: str) -> None:
        """Make a folder and those above it, durably: a file is no safer than the entries that lead to it."""
        above = os.path.dirname(folder)
        if os.path.isdir(folder):
            return
        if above != folder:
            self.make_folder(above)
        os.makedirs(folder, exist_ok=True)
        self.sync_folder(above)

    def sync_folder(self, folder: str) -> None:
        """Make the entries of a folder durable."""
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            self._sync(descriptor)
        finally:
            os.close(descriptor)

    def _sync(self, descriptor: int) -> None:
        try:
            os.fsync(descriptor)
        except OSError as error:
            # Such a mount makes a file durable when it is closed, and may not know fsync at all.
            if self.appends or error.errno not in _UNSUPPORTED:
                raise


class ArrowPlace:
    """A folder of a store that Arrow knows; files there are written once and as a whole."""

    appends = excludes = False

    def __init__(self, filesystem: Any, folder: str, atomic: bool) -> None:
        self._filesystem = filesystem
        self._folder = folder
        self._atomic = atomic

    def where(self, name: str) -> str:
        return f"{self._folder}/{name}" if name else self._folder

    def folders(self) -> list[str]:
        from pyarrow import fs

        with named(self._folder):
            found = self._filesystem.get_file_info(fs.FileSelector(self._folder, allow_not_found=True))
        return sorted(each.base_name for each in found if each.type == fs.FileType.Directory)

    def files(self, name: str) -> list[Entry]:
        from pyarrow import fs

        folder = self.where(name)
        with named(folder):
            selector = fs.FileSelector(folder, allow_not_found=True, recursive=True)
            found = [each for each in self._filesystem.get_file_info(selector) if each.type == fs.FileType.File]
        skip = len(folder.strip("/")) + 1
        entries = (Entry(each.path.strip("/")[skip:], each.size, each.mtime_ns) for each in found)
        return sorted(entries, key=lambda each: each.name)

    def is_file(self, name: str) -> bool:
        from pyarrow import fs

        with named(self.where(name)):
            return bool(self._filesystem.get_file_info(self.where(name)).type == fs.FileType.File)

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        # Where no token is to be had, Arrow's Azure file system raises when it is asked for a file, and ends the whole
        # process when it opens one.
        if not self.is_file(name):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.where(name))
        with named(self.where(name)), self._filesystem.open_input_file(self.where(name)) as file:
            size = file.size()
            first, last = min(start, size), size if end is None else min(end, size)
            data: bytes = file.read_at(max(0, last - first), first)
            return data

    def put(self, name: str, data: bytes) -> None:
        path = self.where(name)
        with named(path):
            self._write(path, data)

    def publish(self, name: str, data: bytes) -> bytes:
        path = self.where(name)
        with named(path):
            if self.is_file(name):
                return self.read(name)
            if self._atomic:
                self._write(path, data)
                # No store of these lets us say "only if it is new": see at least what came of two at once.
                return self.read(name)
            temporary = f"{path}.{secrets.token_hex(4)}{TEMPORARY}"
            self._write(temporary, data)
            try:
                self._filesystem.move(temporary, path)
            except OSError:
                # A rename does not replace there: another was quicker.
                self._delete(temporary)
                if not self.is_file(name):
                    raise
            return self.read(name)

    def _write(self, path: str, data: bytes) -> None:
        try:
            stream = self._filesystem.open_output_stream(path)
        except FileNotFoundError:
            self._filesystem.create_dir(path.rpartition("/")[0], recursive=True)
            stream = self._filesystem.open_output_stream(path)
        with stream:
            stream.write(data)

    def delete(self, name: str) -> None:
        with named(self.where(name)):
            self._delete(self.where(name))

    def _delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.delete_file(path)

    def delete_folder(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError), named(self.where(name)):
            self._filesystem.delete_dir(self.where(name))

    def delete_empty_folder(self, name: str, *, is_over: bool = False) -> None:
        # A plain object store has none. But there are stores with real folders, and some that put a marker for one
        # where the last file was deleted; each would be listed by everybody who looks for journals, for ever.
        if is_over and not self.files(name):
            self.delete_folder(name)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it; a disk that is nearly full takes a part and complains at the next try."""
    done = os.write(descriptor, data)
    while done < len(data):
        done += os.write(descriptor, memoryview(data)[done:])


def _link(temporary: str, path: str) -> None:
    """Give a whole file its name, unless the name is taken."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        # No links on this mount: a rename is as whole, but it would replace what is there.
        if os.path.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
        os.rename(temporary, path)


@contextlib.contextmanager
def named(path: str) -> Iterator[None]:
    """Errors of the operating system or of Arrow leave this as OSErrors that name the path."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        number = error.errno or (errno.ENOENT if isinstance(error, FileNotFoundError) else errno.EIO)
        raise OSError(number, error.strerror or str(error), path) from error
    except pa.ArrowException as error:
        raise OSError(errno.EIO, str(error), path) from error
