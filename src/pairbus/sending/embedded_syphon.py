"""The syphon of a pairing with `enable_syphon`: a thread of this process that moves parked messages to the primary."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pairbus.errors import OptionError
from pairbus.options import Namespace, PairingOptions
from pairbus.runtime.redaction import describe_error

from . import events
from .status import Operations


class EmbeddedSyphon:
    """A syphon that drains the backlog queues of one pairing until it is stopped."""

    def __init__(
        self,
        primary: Namespace,
        secondary: Namespace,
        event_hubs: Namespace | None,
        options: PairingOptions,
        operations: Operations,
        emit: Callable[..., None],
    ) -> None:
        try:
            # Imported here: a pairing without a syphon needs neither an AMQP engine nor Arrow.
            service, drain = (importlib.import_module(f"pairbus.syphon.{name}") for name in ("service", "drain.drain"))
        except ModuleNotFoundError as missing:
            raise OptionError(
                f"enable_syphon=True needs {missing.name}, which is not installed: install pairbus with its extra "
                "'syphon'"
            ) from missing
        self._emit = emit
        self._operations = operations
        journal = journal_folder(options, primary.name)
        self._service: Any = service.Service(
            primary,
            secondary,
            range(options.backlog_queue_count),
            str(journal),
            event_hubs=event_hubs,
            options=drain.DrainOptions(retry_interval=options.seconds("syphon_retry_interval"), late=options.late),
            on_round=self._round,
            on_query=lambda count: operations.add("management", count),
        )
        try:
            self._service.begin()
        except OSError as error:
            raise OptionError(
                f"enable_syphon=True: the journal cannot be written: {error}. Name another folder with syphon_journal="
            ) from error
        self._thread = threading.Thread(target=self._run, name="pairbus-syphon", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Start a round at once: an entity is back, and messages may be parked for it."""
        self._service.wake()

    def stop(self) -> None:
        """Begin nothing new; messages in flight are finished."""
        self._service.stop()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self._service.forever()
        except Exception as error:
            self._emit(events.SYPHON_ENDED, error=describe_error(error))
        else:
            if self._service.journal_error is not None:
                self._emit(events.SYPHON_ENDED, error=self._service.journal_error)

    def _round(self, done: Any) -> None:
        self._operations.add("syphon", sum(each.operations for each in done.queues))
        if done.moved or done.errors:
            counts = {
                name: sum(getattr(each, name) for each in done.queues)
                for name in ("delivered", "dead_lettered", "held", "in_doubt")
            }
            self._emit(events.BROUGHT_HOME, errors=list(done.errors), **counts)


def journal_folder(options: PairingOptions, primary_name: str) -> Path:
    """Return the journal's folder: the option, or one for each primary in the user's state folder."""
    if options.syphon_journal is not None:
        return Path(options.syphon_journal).absolute()
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "pairbus" / "journal" / primary_name
