"""Signals of a Spark job: small files by which its driver speaks to its reader, its tasks and its next run.

Files, because none of these processes can call another: the reader runs in a process beside the driver, tasks run on
executors, and the next run may start on another machine.

| signal        | file                | written by the driver   | read by                         | removed          |
|---------------|---------------------|-------------------------|---------------------------------|------------------|
| `ReaderNote`  | `note` [1]          | start, each batch, stop | reader, when Spark polls it     | end of the run   |
| `StopSignal`  | `<run>.stop` [2]    | stop during a batch     | tasks, before and during drains | end of the run   |
| `KillSignal`  | `<run>.killed` [2]  | after a failed batch    | tasks, before a drain           | end of the run   |
| `FolderProbe` | `<run>.sample` [2]  | before the start        | tasks that look for it          | after those      |
| `LastRun`     | `pairbus-run` [3]   | start                   | next run's driver, at its start | never; replaced  |

Folders: [1] a temporary one on the driver's machine; [2] that of the journals, beside those of the runs; [3] the
checkpoint. The state of a run, by which syphons divide the folding of journals, belongs to
`pairbus.syphon.journal.run_state`.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from py4j.protocol import Py4JJavaError

from .java_errors import root_cause

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pairbus.syphon.journal.storage_port import Storage

log = logging.getLogger("pairbus.syphon")


@dataclass(frozen=True, slots=True)
class ReaderNote:
    """The driver's note to the reader. Times are seconds since 1970, because two processes share them."""

    #: Number of the note. The reader uses the depths of each note once.
    serial: int = 0
    #: Queue index -> depth after a batch, and the time of that query.
    depths: Mapping[int, int | None] | None = None
    queried_at: float = 0.0
    #: Time before which no batch is offered.
    pause_until: float = 0.0
    #: True if no batch is offered any more.
    stopping: bool = False

    def write(self, path: Path) -> None:
        """Replace the note in the file; a reader sees the old note or this one, never a part."""
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self)))
        os.replace(new, path)

    @classmethod
    def read(cls, path: Path | None) -> ReaderNote:
        """Return the note in the file; an empty note if there is no file."""
        try:
            fields = json.loads(path.read_text()) if path is not None else None
        except FileNotFoundError:
            fields = None
        if fields is None:
            return cls()
        depths = fields.pop("depths")
        return cls(depths=depths and {int(index): depth for index, depth in depths.items()}, **fields)


class ReaderNotes:
    """The notes of one run: numbers them, and adds whether the run is stopping."""

    def __init__(self, path: Path, stopping: threading.Event) -> None:
        self._path = path
        self._stopping = stopping
        self._lock = threading.Lock()
        self._serial = 0

    def write(self, note: ReaderNote) -> None:
        """Write the next note; a failure is logged, because the reader can do without."""
        with self._lock:
            self._serial += 1
            try:
                replace(note, serial=self._serial, stopping=self._stopping.is_set()).write(self._path)
            except OSError as error:
                log.warning("reader note not written to %s: %s; the reader queries by itself", self._path, error)


@dataclass(frozen=True, slots=True)
class _JournalFolderSignal:
    """A signal in the journal folder, beside the folders of the runs: those hold journals only."""

    folder: str
    run: str

    ending: ClassVar[str]

    def _write(self, text: str) -> None:
        self._storage().put(self._name, f"{text}\n".encode())

    def _read(self) -> str | None:
        try:
            return self._storage().read(self._name).decode()
        except FileNotFoundError:
            return None

    def remove(self) -> None:
        self._storage().delete(self._name)

    @property
    def _name(self) -> str:
        return f"{self.run}.{self.ending}"

    def _storage(self) -> Storage:
        # The reader's processes import this module and never use the storage.
        from pairbus.syphon.journal.storage import storage_at

        return storage_at(self.folder)


@dataclass(frozen=True, slots=True)
class StopSignal(_JournalFolderSignal):
    """The request to running tasks to take no more messages and to return."""

    ending: ClassVar[str] = "stop"

    def set(self) -> None:
        self._write("stop")

    def is_set(self) -> bool:
        """Return True if the stop is requested; False also if the storage fails, which is logged."""
        try:
            return self._read() is not None
        except OSError as error:
            log.warning("stop signal of run %s cannot be read: %s; the drain goes on", self.run, error)
            return False


@dataclass(frozen=True, slots=True)
class KillSignal(_JournalFolderSignal):
    """The time until which tasks that were killed may still have messages locked."""

    ending: ClassVar[str] = "killed"

    def set(self, until: float) -> None:
        """Set the time, in seconds since 1970; raises OSError if it cannot be written."""
        self._write(f"{until}")

    def until(self) -> float:
        """Return the time, 0 if no task was killed; if it cannot be read, a time to come, which is safe."""
        try:
            return float(self._read() or 0.0)
        except (OSError, ValueError) as error:
            log.warning("kill signal of run %s cannot be read: %s; a kill is assumed", self.run, error)
            return time.time() + 1.0


@dataclass(frozen=True, slots=True)
class FolderProbe(_JournalFolderSignal):
    """A file by which executors find out whether they share the journal folder with the driver."""

    ending: ClassVar[str] = "sample"

    def set(self) -> None:
        self._write("seen")

    def is_seen(self) -> bool:
        try:
            return self._read() is not None
        except OSError as error:
            log.warning("journal folder %s cannot be read: %s", self._storage().location(self._name), error)
            return False


class CheckpointError(OSError):
    """The checkpoint folder cannot be read or written."""


class LastRun:
    """The run that used a checkpoint last, stored with Spark's file systems: they have the credentials for it."""

    _FILE = "pairbus-run"

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        context: Any = spark.sparkContext
        self._jvm = context._jvm
        self._configuration = context._jsc.hadoopConfiguration()
        self._checkpoint = checkpoint

    def read(self) -> str | None:
        """Return the last run's id; None for a new checkpoint. Raises `CheckpointError`."""
        try:
            files, path = self._open()
            if not files.exists(path):
                return None
            stream = files.open(path)
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")).strip() or None
            finally:
                stream.close()
        except Py4JJavaError as error:
            raise self._failure(error) from error

    def write(self, run: str) -> None:
        """Store a run's id durably. Raises `CheckpointError`."""
        try:
            files, path = self._open()
            stream = files.create(path, True)
            try:
                stream.write(bytearray(f"{run}\n".encode()))
            finally:
                stream.close()
        except Py4JJavaError as error:
            raise self._failure(error) from error

    def _open(self) -> tuple[Any, Any]:
        path = self._jvm.org.apache.hadoop.fs.Path(self._checkpoint, self._FILE)
        return path.getFileSystem(self._configuration), path

    def _failure(self, error: Py4JJavaError) -> CheckpointError:
        return CheckpointError(f"{self._checkpoint}: {root_cause(error)}")
