"""Connections of the SDKs' senders, each used by one thread at a time, and every call on them with a deadline.

The SDK bounds a send on an open link, but not the opening of a connection. So a link is opened on a thread that may be
left behind, and a watchdog cuts each connection whose call is late. It also keeps idle connections alive.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.runtime.bounded_call import start_call
from pairbus.runtime.redaction import describe_error

from .sdk import connection_patches
from .sdk.classification import at_opening
from .sdk.connection_patches import is_running

log = logging.getLogger("pairbus.sending.lanes")

#: Seconds between two looks at the deadlines, and beyond a deadline until the connection is cut.
_LOOK_SECONDS, _GRACE_SECONDS = 0.25, 0.5
#: Seconds without use after which a connection is kept alive.
_IDLE_SECONDS = 30.0


class ConnectionWatchdog:
    """A thread that cuts the connections of calls past their deadline, and keeps idle connections alive."""

    def __init__(self) -> None:
        #: Connection -> deadline of the call on it. A link that is being opened stays until that has ended, also when
        #: its caller has given up: when it was cut there may have been no socket to cut yet.
        self._deadlines: dict[SenderConnection, float] = {}
        self._pools: list[ConnectionPool] = []
        self._keeping_alive: threading.Thread | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pairbus-watchdog", daemon=True)
        self._thread.start()

    def watch(self, pool: ConnectionPool) -> None:
        self._pools.append(pool)

    def begin(self, connection: SenderConnection, deadline: float) -> None:
        """Note a call on a connection, which is cut unless the call ends by then."""
        self._deadlines[connection] = deadline

    def end(self, connection: SenderConnection) -> None:
        """Note that the call on a connection has ended."""
        self._deadlines.pop(connection, None)

    @property
    def running_calls(self) -> int:
        """The number of calls that have not ended, among them links that are opened for a caller that has given up."""
        return len(self._deadlines)

    def stop(self, deadline: float) -> None:
        """Wait until then for the calls that run, cut those that are left, and end the thread."""
        while any(not connection.was_cut for connection in list(self._deadlines)) and time.monotonic() < deadline:
            time.sleep(0.02)
        for connection in list(self._deadlines):
            connection.cut()
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_SECONDS) or self._deadlines:
            if self._stopped.is_set():
                time.sleep(_LOOK_SECONDS)  # for links that are still being opened after their callers have given up
            try:
                self._look(time.monotonic())
            except Exception:  # the thread must go on: without it no call has a deadline
                log.exception("the watchdog of the connections failed; it goes on")

    def _look(self, now: float) -> None:
        """Cut what is past its deadline, and start keeping idle connections alive if there are any."""
        for connection, deadline in self._deadlines.copy().items():
            if connection.was_cut or now > deadline + _GRACE_SECONDS:
                connection.cut()
        if self._stopped.is_set() or (self._keeping_alive is not None and self._keeping_alive.is_alive()):
            return
        before = now - _IDLE_SECONDS
        if any(pool.has_idle(before) for pool in self._pools.copy()):
            # On a thread of its own: the peer decides how long it takes.
            self._keeping_alive = threading.Thread(
                target=self._keep_alive, args=(before,), name="pairbus-keep-alive", daemon=True
            )
            self._keeping_alive.start()

    def _keep_alive(self, before: float) -> None:
        """Keep every connection alive that was last used before then, one after the other."""
        for pool in self._pools.copy():
            while not self._stopped.is_set() and pool.keep_alive(before):
                pass


class SenderConnection:
    """One sender of an SDK with a connection of its own: Service Bus's sender, or `HubSender` for an event hub."""

    def __init__(self, sender: Any, watchdog: ConnectionWatchdog) -> None:
        self.sender = sender
        self._timeout_error = getattr(sender, "timeout_error", lambda text: OperationTimeoutError(message=text))
        self._watchdog = watchdog
        #: True while the link is open as far as is known; a call on it opens no other.
        self.opened = False
        #: The largest batch that the entity takes, in bytes; 0 until the link was open once.
        self.limit = 0
        self._cut = False
        self._opening: threading.Event | None = None
        self._being_opened = False
        self.used_at = 0.0

    def open(self, timeout: float) -> None:
        """Open the connection and the link, or raise the SDK's error, in bounded time."""
        if self.opened:
            return
        if self._cut:
            raise self._timeout_error("The link could not be opened: its connection was cut.")
        self._opening = done = threading.Event()
        if self.was_cut:  # just now, by a thread that may not have seen the event
            done.set()
        self._being_opened = True

        def on_end(call: Future[Any]) -> None:
            self._being_opened = False
            self._watchdog.end(self)
            done.set()
            if self._cut and not call.cancelled():  # its caller has stopped waiting
                self.close()

        self._watchdog.begin(self, time.monotonic() + timeout)
        opening = start_call(self.sender.__enter__, "pairbus-open", on_end)
        done.wait(min(timeout, threading.TIMEOUT_MAX))
        if not opening.done():
            self.cut()
            raise self._timeout_error(f"The link could not be opened within {timeout:g} s.")
        if (error := opening.exception()) is not None:
            raise at_opening(error)
        self.limit = self.sender.create_message_batch().max_size_in_bytes
        self.opened = True

    def send(self, message: Any, timeout: float) -> None:
        """Send and wait for the answer, in bounded time."""
        if not self.opened:
            began = time.monotonic()
            self.open(timeout)
            timeout = max(timeout - (time.monotonic() - began), 0.001)
        self._watchdog.begin(self, time.monotonic() + timeout)
        try:
            self.sender.send_messages(message, timeout=timeout)
        except Exception as error:
            if self._cut:
                raise self._timeout_error(f"No answer to a send within {timeout:g} s.") from error
            self.opened = is_running(self.sender)
            raise
        finally:
            self._watchdog.end(self)

    def keep_alive(self) -> None:
        """Keep an idle connection alive; raise if it is dead."""
        connection_patches.keep_alive(self.sender)
        self.used_at = time.monotonic()

    def cut(self) -> None:
        """Cut the connection: the call on it ends with an error, and it cannot be used again."""
        self._cut = True
        self.opened = False
        connection_patches.abort(self.sender)
        if self._opening is not None:
            self._opening.set()  # before there is a socket nothing can be cut, but the caller need not wait

    @property
    def was_cut(self) -> bool:
        """True once the connection was cut; it cannot be used again."""
        return self._cut

    def close(self) -> None:
        """Close link and connection in order, which takes the SDK about a second."""
        if self._being_opened:
            return  # the SDK cannot close what it is opening; the thread that opens it closes it
        try:
            self.sender.close()
        except Exception as error:
            log.debug("a connection could not be closed in order: %s", describe_error(error))


@dataclass(slots=True)
class Attempt:
    """One send on one connection; after a failure the caller gives the connection back to the pool, or drops it."""

    connection: SenderConnection
    #: True if the link was open already: it may have gone stale while it was idle.
    was_open: bool
    #: When it began, by `time.monotonic`.
    began: float
    #: None if the messages were accepted.
    error: Exception | None = None


class ConnectionPool:
    """The connections to one entity: as many as there are threads that send at once, the last used first."""

    def __init__(self, make: Callable[[], Any], watchdog: ConnectionWatchdog) -> None:
        self._make = make
        self.watchdog = watchdog
        self._idle: list[SenderConnection] = []
        self._lock = threading.Lock()
        watchdog.watch(self)
        #: The largest batch that the entity takes, in bytes; 0 until a link was open once.
        self.limit = 0
        #: True while an open sender may use them; otherwise none is kept.
        self.wanted = True
        self._closed = False

    @property
    def idle_count(self) -> int:
        """The number of connections that are kept for the next call."""
        return len(self._idle)

    def take(self) -> SenderConnection:
        """Return a connection for one call; the caller gives it back or drops it."""
        try:
            return self._idle.pop()
        except IndexError:
            return self.take_new()

    def take_new(self) -> SenderConnection:
        with self._lock:  # the SDK's client is not made for threads
            return SenderConnection(self._make(), self.watchdog)

    def attempt(self, message: Any, seconds: float) -> Attempt:
        """Send on one connection; after a failure the caller must `give_back` or `drop` it. Ctrl-C drops it."""
        connection = self.take()
        attempt = Attempt(connection, connection.opened, time.monotonic())
        try:
            connection.send(message, seconds)
        except Exception as error:
            attempt.error = error
        except BaseException:
            self.drop(connection)
            raise
        else:
            self.give_back(connection)
        return attempt

    def give_back(self, connection: SenderConnection) -> None:
        """Keep a connection for the next call; drop it if its link is closed or its connection was cut."""
        if connection.was_cut or not connection.opened:
            self.drop(connection)
            return
        if connection.limit:
            self.limit = connection.limit
        connection.used_at = time.monotonic()
        self._idle.append(connection)
        if self._closed or not self.wanted:
            self.close_idle()

    def drop(self, connection: SenderConnection) -> None:
        """Cut a connection that failed, and close it in the background."""
        connection.cut()
        _close_in_background(connection)

    def has_idle(self, before: float) -> bool:
        """Return True if a connection was last used before then."""
        try:
            return self._idle[0].used_at < before
        except IndexError:
            return False

    def keep_alive(self, before: float) -> bool:
        """Keep the least recently used connection alive if that was before then; return False if there is none."""
        try:
            if self._idle[0].used_at >= before:
                return False
            connection = self._idle.pop(0)
        except IndexError:  # another thread has just taken the last one
            return False
        try:
            connection.keep_alive()
        except Exception as error:
            log.debug("an idle connection is dead: %s; the next send opens another", describe_error(error))
            self.drop(connection)
        else:
            self.give_back(connection)
        return True

    def drop_idle(self) -> None:
        """Drop all idle connections: one was found dead, and the others are as old."""
        for connection in self._take_idle():
            self.drop(connection)

    def _take_idle(self) -> Iterator[SenderConnection]:
        while True:
            try:
                yield self._idle.pop()
            except IndexError:
                return

    def close(self) -> list[threading.Thread]:
        """Close the idle connections, each on a thread that is returned; those in use when they are given back."""
        self._closed = True
        return self.close_idle()

    def close_idle(self) -> list[threading.Thread]:
        """Close the idle connections, each on a thread that is returned; the next send opens a new one."""
        threads = [_close_in_background(connection) for connection in self._take_idle()]
        return [thread for thread in threads if thread is not None]


def _close_in_background(connection: SenderConnection) -> threading.Thread | None:
    """Close a connection on a thread, which is returned; if no thread can be started it is only cut."""
    thread = threading.Thread(target=connection.close, name="pairbus-close", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # Python collects the rest
        connection.cut()
        log.debug("a connection was cut instead of being closed in order: %s", describe_error(error))
        return None
    return thread
