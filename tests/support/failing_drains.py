"""Drains for cases that the real one cannot be brought into; they are pickled to executors."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusClient

from pairbus.domain.backlog import queue_path
from pairbus.domain.outcome import HeldCount, Outcome, QueueSummary, Rows
from pairbus.spark.drain_task import ExecutorCheck
from pairbus.spark.signals import FolderProbe
from pairbus.syphon.drain.drain import drain_queue


def hold_everything(*, queue_index: int, **others: Any) -> QueueSummary:
    """Hold every message back, as for a destination that is busy."""
    held = (HeldCount("orders", "com.microsoft:server-busy", 3),)
    return QueueSummary(queue_index, received=3, held=3, empty=True, held_for=held)


def explode(**others: Any) -> QueueSummary:
    """Fail, as by a defect."""
    raise RuntimeError("a defect in the drain")


class WithoutPairbus:
    """A check on an executor that has no pairbus."""

    def __init__(self, probe: Any) -> None: ...

    def run(self, batches: Any) -> Any:
        raise ModuleNotFoundError("No module named 'pairbus'")


class OnAnotherMachine(ExecutorCheck):
    """An executor that has another folder at that path."""

    def __init__(self, probe: FolderProbe) -> None:
        super().__init__(replace(probe, folder=f"{probe.folder}-of-another-machine"))


class UntilStopped:
    """A drain that delivers a message now and then until it is stopped; it leaves a file when it has begun."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *, queue_index: int, journal: Any, stop: Any, **others: Any) -> QueueSummary:
        number = 1
        journal.write(row(number))
        (self.folder / f"begun-{queue_index}").touch()
        while not stop():
            number += 1
            journal.write(row(number))
            time.sleep(0.05)
        return QueueSummary(queue_index, received=number, delivered=number)


def row(number: int) -> Rows:
    """Return the row of one delivered message."""
    return Rows(
        [number], [f"id-{number}"], [None], ["orders"], [Outcome.DELIVERED.value], [None], [None], [0], [10], [0]
    )


class KilledOnce:
    """A drain that delivers a message, writes its row and is killed; the next one delivers another and returns."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *, queue_index: int, journal: Any, **others: Any) -> QueueSummary:
        trace = self.folder / f"killed-{queue_index}"
        if not trace.exists():
            trace.touch()
            journal.write(row(1))
            os.kill(os.getpid(), signal.SIGKILL)
        journal.write(row(2))
        return QueueSummary(queue_index, received=1, delivered=1, empty=True)


class DiesWithLocks:
    """A drain that locks ten messages and is killed; later ones are real drains."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *, queue_index: int, **others: Any) -> QueueSummary:
        trace = self.folder / "killed"
        if not trace.exists():
            trace.touch()
            secondary, path = others["secondary"], queue_path(others["primary"].name, queue_index)
            with ServiceBusClient(secondary.host, secondary.credential, use_tls=False) as client:
                receiver = client.get_queue_receiver(path)
                receiver.receive_messages(max_message_count=10)
                os.kill(os.getpid(), signal.SIGKILL)
        return drain_queue(queue_index=queue_index, **others)
