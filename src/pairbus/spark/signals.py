"""Marks: files by which the driver tells the tasks of its run something while they run; all of them can see them."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import ClassVar

from pairbus.syphon.journal.storage import storage_at

log = logging.getLogger("pairbus.syphon")


@dataclass(frozen=True, slots=True)
class _Mark:
    """A file on the journals' storage, beside the runs' folders, not in one: what is in there are journals."""

    folder: str
    run: str

    ending: ClassVar[str]

    def _put(self, text: str) -> None:
        storage_at(self.folder).put(f"{self.run}.{self.ending}", f"{text}\n".encode())

    def _read(self) -> str | None:
        """What it says, None while it is not there."""
        try:
            return storage_at(self.folder).read(f"{self.run}.{self.ending}").decode()
        except FileNotFoundError:
            return None

    def remove(self) -> None:
        storage_at(self.folder).delete(f"{self.run}.{self.ending}")


@dataclass(frozen=True, slots=True)
class StopMark(_Mark):
    """Tells running tasks to come to an end."""

    ending: ClassVar[str] = "stop"

    def set(self) -> None:
        self._put("stop")

    def is_set(self) -> bool:
        """Whether the mark is there; a storage that does not answer has not said so."""
        try:
            return self._read() is not None
        except OSError as error:
            log.warning("whether to stop could not be seen: %s", error)
            return False


@dataclass(frozen=True, slots=True)
class KillMark(_Mark):
    """Tells until when messages may be locked by tasks of this run that were killed."""

    ending: ClassVar[str] = "killed"

    def set(self, until: float) -> None:
        self._put(f"{until}")

    def until(self) -> float:
        """A point in time, 0 while nothing was killed. Who cannot see it takes it that something was."""
        try:
            return float(self._read() or 0.0)
        except (OSError, ValueError) as error:
            log.warning("whether a task was killed could not be seen: %s", error)
            return time.time() + 1.0


@dataclass(frozen=True, slots=True)
class SharedSample(_Mark):
    """Something of the driver's for executors to look at before a message moves."""

    ending: ClassVar[str] = "sample"

    def put(self) -> None:
        self._put("seen")

    def is_seen(self) -> bool:
        try:
            return self._read() is not None
        except OSError as error:
            log.warning("the journals' folder cannot be read: %s", error)
            return False
