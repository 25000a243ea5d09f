"""Storage on a disk, or on a mount that looks like one."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
from collections.abc import Callable, Iterator

from .growing_file import GrowingFileWriter, write_all
from .segments import SegmentWriter
from .storage_port import TEMPORARY, FileEntry, FrameWriter, errors_naming

_UNSUPPORTED = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM}


class LocalStorage:
    """A `Storage` on a disk. Journals grow in one file; every change is synced with the folders above it."""

    publishes_exclusively = True

    def __init__(self, folder: str) -> None:
        self._folder = os.path.abspath(folder)

    def location(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def new_journal(self, new_name: Callable[[], str]) -> FrameWriter:
        return GrowingFileWriter(self, new_name)

    def folders(self) -> list[str]:
        try:
            with os.scandir(self._folder) as found:
                return sorted(each.name for each in found if each.is_dir())
        except FileNotFoundError:
            return []

    def files(self, name: str) -> list[FileEntry]:
        return list(self._walk(self.location(name), ""))

    def _walk(self, folder: str, prefix: str) -> Iterator[FileEntry]:
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
                    yield FileEntry(prefix + each.name, each.stat().st_mtime_ns)
            except FileNotFoundError:
                continue  # another process has removed it meanwhile

    def is_file(self, name: str) -> bool:
        return os.path.isfile(self.location(name))

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        with open(self.location(name), "rb") as file:
            file.seek(start)
            return file.read() if end is None else file.read(max(0, end - start))

    def put(self, name: str, data: bytes) -> None:
        path = self.location(name)
        with errors_naming(path):
            self._write(path, data)
            self.sync_folder(os.path.dirname(path))

    def publish(self, name: str, data: bytes) -> bytes:
        path = self.location(name)
        temporary = f"{path}.{secrets.token_hex(4)}{TEMPORARY}"
        with errors_naming(path):
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
        """Open a file for writing. If its folder is missing, create that first."""
        try:
            return io.FileIO(path, mode)
        except FileNotFoundError:
            self._make_folder(os.path.dirname(path))
            return io.FileIO(path, mode)

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError), errors_naming(self.location(name)):
            os.unlink(self.location(name))

    def delete_folder(self, name: str) -> None:
        for each in self.files(name):
            self.delete(f"{name}/{each.name}")
        self.delete_empty_folder(name)

    def delete_empty_folder(self, name: str, *, unused: bool = False) -> None:
        try:
            os.rmdir(self.location(name))
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise

    def _make_folder(self, folder: str) -> None:
        """Create a folder and those above it, and sync each: a file is lost if the entry of a folder above it is."""
        above = os.path.dirname(folder)
        if os.path.isdir(folder):
            return
        if above != folder:
            self._make_folder(above)
        os.makedirs(folder, exist_ok=True)
        self.sync_folder(above)

    def sync_folder(self, folder: str) -> None:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            self._sync(descriptor)
        finally:
            os.close(descriptor)

    def _sync(self, descriptor: int) -> None:
        os.fsync(descriptor)


class MountStorage(LocalStorage):
    """A `Storage` on a mount that takes files as a whole: they can be neither appended to nor linked."""

    publishes_exclusively = False

    def new_journal(self, new_name: Callable[[], str]) -> FrameWriter:
        return SegmentWriter(self, new_name)

    def _sync(self, descriptor: int) -> None:
        # Such a mount makes a file durable when it is closed, and may not know fsync at all.
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise


def _link(temporary: str, path: str) -> None:
    """Give a whole file its final name, or raise FileExistsError if the name is taken."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        # The mount has no links. A rename shows the file as a whole too, but would replace one that exists.
        if os.path.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
        os.rename(temporary, path)
