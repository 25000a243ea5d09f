"""Storage in a store that `pyarrow.fs` knows; it takes files as a whole."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Callable
from typing import Any

from .segments import SegmentWriter
from .storage_port import TEMPORARY, FileEntry, FrameWriter, errors_naming


class ArrowStorage:
    """A `Storage` in a `pyarrow.fs.FileSystem`, whose journals are folders of segments."""

    publishes_exclusively = False

    def __init__(self, filesystem: Any, folder: str, atomic: bool) -> None:
        self._filesystem = filesystem
        self._folder = folder
        #: True if the store shows an object only once it is whole. Otherwise files are published by a rename.
        self._atomic = atomic

    def location(self, name: str) -> str:
        return f"{self._folder}/{name}" if name else self._folder

    def new_journal(self, new_name: Callable[[], str]) -> FrameWriter:
        return SegmentWriter(self, new_name)

    def folders(self) -> list[str]:
        from pyarrow import fs

        with errors_naming(self._folder):
            found = self._filesystem.get_file_info(fs.FileSelector(self._folder, allow_not_found=True))
        return sorted(each.base_name for each in found if each.type == fs.FileType.Directory)

    def files(self, name: str) -> list[FileEntry]:
        from pyarrow import fs

        folder = self.location(name)
        with errors_naming(folder):
            selector = fs.FileSelector(folder, allow_not_found=True, recursive=True)
            found = [each for each in self._filesystem.get_file_info(selector) if each.type == fs.FileType.File]
        skip = len(folder.strip("/")) + 1
        entries = (FileEntry(each.path.strip("/")[skip:], each.mtime_ns) for each in found)
        return sorted(entries, key=lambda each: each.name)

    def is_file(self, name: str) -> bool:
        from pyarrow import fs

        with errors_naming(self.location(name)):
            return bool(self._filesystem.get_file_info(self.location(name)).type == fs.FileType.File)

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        # Without a token Arrow's Azure file system raises in get_file_info, but ends the process in open_input_file.
        if not self.is_file(name):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.location(name))
        with errors_naming(self.location(name)), self._filesystem.open_input_file(self.location(name)) as file:
            size = file.size()
            first, last = min(start, size), size if end is None else min(end, size)
            data: bytes = file.read_at(max(0, last - first), first)
            return data

    def put(self, name: str, data: bytes) -> None:
        path = self.location(name)
        with errors_naming(path):
            self._write(path, data)

    def publish(self, name: str, data: bytes) -> bytes:
        path = self.location(name)
        with errors_naming(path):
            if self.is_file(name):
                return self.read(name)
            if self._atomic:
                self._write(path, data)
                # These stores have no "create if absent": after two concurrent writes both read the last one.
                return self.read(name)
            temporary = f"{path}.{secrets.token_hex(4)}{TEMPORARY}"
            self._write(temporary, data)
            try:
                self._filesystem.move(temporary, path)
            except OSError:
                # The rename does not replace a file: another process has published first.
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
        with errors_naming(self.location(name)):
            self._delete(self.location(name))

    def _delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.delete_file(path)

    def delete_folder(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError), errors_naming(self.location(name)):
            self._filesystem.delete_dir(self.location(name))

    def delete_empty_folder(self, name: str, *, unused: bool = False) -> None:
        # A plain object store has no folders. But some stores have them, and some keep a marker where the last file of
        # one was deleted: every later listing would contain it.
        if unused and not self.files(name):
            self.delete_folder(name)
