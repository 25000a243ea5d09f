"""Connections of the SDK's senders: used by one thread at a time, and no call on them takes longer than it may.

The SDK bounds a send on an open link, but not the opening of a connection: a peer that takes the connection and says
nothing would hold it for ever. So a link is opened on a thread that can be left behind, and a guard cuts the connection
of any call that is over its time. The guard also has connections tended that are idle, which the SDK would do with a
thread for each.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.runtime.bounded_call import start_call
from pairbus.runtime.redaction import describe_error

from .sdk.classification import at_opening
from .sdk.service_bus import is_running, shut, tend

log = logging.getLogger("pairbus.sending.lanes")

#: The guard looks so often, and gives a call so much longer than it was asked to take before it cuts it.
_LOOK_SECONDS, _GRACE_SECONDS = 0.25, 0.5
#: A connection that was idle for so long is tended.
_IDLE_SECONDS = 30.0


class Guard:
    """One thread that cuts the connections of calls which are over their time."""

    def __init__(self) -> None:
        #: The calls that are under way, and when they must have ended. A link that is being opened stays until
        #: that has ended, also when its caller has given up: there may have been nothing to cut yet when it was cut.
        self.deadlines: dict[Lane, float] = {}
        self._lanes: list[Lanes] = []
        self._tending: threading.Thread | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pairbus-guard", daemon=True)
        self._thread.start()

    def watch(self, lanes: Lanes) -> None:
        """Tend these when they are idle."""
        self._lanes.append(lanes)

    def finish(self, deadline: float) -> None:
        """Let the calls that are under way end by then; after it nobody waits any longer."""
        while any(not lane.was_cut for lane in list(self.deadlines)) and time.monotonic() < deadline:
            time.sleep(0.02)
        for lane in list(self.deadlines):
            lane.cut()
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_SECONDS) or self.deadlines:
            if self._stopped.is_set():
                time.sleep(_LOOK_SECONDS)  # for links that are still being opened, though nobody waits for them
            try:
                self._look(time.monotonic())
            except Exception:  # without its guard no call would be bounded
                log.exception("the guard of the connections stumbled")

    def _look(self, now: float) -> None:
        for lane, deadline in self.deadlines.copy().items():
            if lane.was_cut or now > deadline + _GRACE_SECONDS:
                lane.cut()
        if self._stopped.is_set() or (self._tending is not None and self._tending.is_alive()):
            return
        before = now - _IDLE_SECONDS
        if any(lanes.has_idle(before) for lanes in self._lanes.copy()):
            # Elsewhere: it takes time, and how much is up to a peer.
            self._tending = threading.Thread(target=self._tend, args=(before,), name="pairbus-tend", daemon=True)
            self._tending.start()

    def _tend(self, before: float) -> None:
        """Tend whatever was idle before then, one after the other."""
        for lanes in self._lanes.copy():
            while not self._stopped.is_set() and lanes.tend(before):
                pass


def _timeout_error(message: str) -> Exception:
    return OperationTimeoutError(message=message)


class Lane:
    """One sender of an SDK, with its own connection: Service Bus's, or what `eventhub_sdk` makes look like one."""

    def __init__(self, sender: Any, guard: Guard) -> None:
        self._sender = sender
        self._timeout_error = getattr(sender, "timeout_error", _timeout_error)
        self._deadlines = guard.deadlines
        #: Whether the link is open, as far as we know: a call on it opens no other.
        self.opened = False
        #: The largest batch the entity takes, in bytes; 0 until the link was open once.
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
        if self.was_cut:  # just now: whoever did it may not have seen the event
            done.set()
        self._being_opened = True

        def on_end(call: Future[Any]) -> None:
            self._being_opened = False
            self._deadlines.pop(self, None)
            done.set()
            if self._cut and not call.cancelled():  # its caller has stopped waiting
                self.close()

        self._deadlines[self] = time.monotonic() + timeout  # a pairing that closes cuts this short, too
        opening = start_call(self._sender.__enter__, "pairbus-open", on_end)
        done.wait(min(timeout, threading.TIMEOUT_MAX))
        if not opening.done():
            self.cut()
            raise self._timeout_error(f"The link could not be opened within {timeout:g} s.")
        if (error := opening.exception()) is not None:
            raise at_opening(error)
        self.limit = self._sender.create_message_batch().max_size_in_bytes
        self.opened = True

    def send(self, message: Any, timeout: float) -> None:
        """Send and wait for the answer, in bounded time."""
        if not self.opened:
            began = time.monotonic()
            self.open(timeout)
            timeout = max(timeout - (time.monotonic() - began), 0.001)
        self._deadlines[self] = time.monotonic() + timeout
        try:
            self._sender.send_messages(message, timeout=timeout)
        except Exception as error:
            if self._cut:
                raise self._timeout_error(f"No answer to a send within {timeout:g} s.") from error
            self.opened = is_running(self._sender)
            raise
        finally:
            self._deadlines.pop(self, None)

    def tend(self) -> None:
        """Keep an idle connection alive; raises if it is dead."""
        tend(self._sender)
        self.used_at = time.monotonic()

    def cut(self) -> None:
        """End whatever goes on on this lane; it cannot be used again."""
        self._cut = True
        self.opened = False
        shut(self._sender)
        if self._opening is not None:
            self._opening.set()  # while a connection is being made there is nothing to shut: its caller goes on anyway

    @property
    def was_cut(self) -> bool:
        return self._cut

    def close(self) -> None:
        """Say goodbye; the SDK takes about a second for it."""
        if self._being_opened:
            return  # the SDK would stumble; the thread that opens it closes it then
        try:
            self._sender.close()
        except Exception as error:
            log.debug("a connection could not be closed in order: %s", describe_error(error))


class Lanes:
    """The lanes to one entity: as many as there are threads that send at once, the last used first."""

    def __init__(self, make: Callable[[], Any], guard: Guard) -> None:
        self._make = make
        self._guard = guard
        self._idle: list[Lane] = []
        self._lock = threading.Lock()
        guard.watch(self)
        self.limit = 0
        #: Whether there is a sender for whom they are kept open.
        self.wanted = True
        self._closed = False

    def take(self) -> Lane:
        """A lane for one call; give it back, or drop it."""
        try:
            return self._idle.pop()
        except IndexError:
            return self.take_new()

    def take_new(self) -> Lane:
        """A lane that nobody has used."""
        with self._lock:  # the SDK's client is not made for threads
            return Lane(self._make(), self._guard)

    def give(self, lane: Lane) -> None:
        """A call has ended well."""
        if lane.was_cut:  # as its answer arrived
            self.drop(lane)
            return
        if lane.limit:
            self.limit = lane.limit
        lane.used_at = time.monotonic()
        self._idle.append(lane)
        if self._closed or not self.wanted:
            self.close_idle()

    def put_back(self, lane: Lane) -> None:
        """A call has been refused: the lane can be used again if its link is open still."""
        if lane.opened:
            self.give(lane)
        else:
            self.drop(lane)

    def drop(self, lane: Lane) -> None:
        """A lane that failed: cut now, tidied up in the background."""
        lane.cut()
        _close_aside(lane)

    def has_idle(self, before: float) -> bool:
        """Whether there is a lane that nobody has used since then."""
        try:
            return self._idle[0].used_at < before
        except IndexError:
            return False

    def tend(self, before: float) -> bool:
        """Tend the lane that was used least, if that was before then; the least used lie first."""
        try:
            if self._idle[0].used_at >= before:
                return False
            lane = self._idle.pop(0)
        except IndexError:  # no more, or somebody else has just taken it
            return False
        if lane.opened:
            try:
                lane.tend()
            except Exception as error:
                log.debug("an idle connection is gone: %s", describe_error(error))
                self.drop(lane)
            else:
                self.give(lane)
        return True

    def drop_idle(self) -> None:
        """One was found dead: the others of its age are, too."""
        for lane in self._take_idle():
            self.drop(lane)

    def _take_idle(self) -> Iterator[Lane]:
        while True:
            try:
                yield self._idle.pop()
            except IndexError:
                return

    def close(self) -> list[threading.Thread]:
        """Close the idle lanes, each on a thread of its own; those in use when they are given back."""
        self._closed = True
        return self.close_idle()

    def close_idle(self) -> list[threading.Thread]:
        """Nobody needs these for now; the next send opens a new one."""
        threads = [_close_aside(lane) for lane in self._take_idle()]
        return [thread for thread in threads if thread is not None]


def _close_aside(lane: Lane) -> threading.Thread | None:
    """Close a lane on a thread of its own, which is returned; where there are no more threads it is only cut."""
    thread = threading.Thread(target=lane.close, name="pairbus-close", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # the rest is for Python to collect
        lane.cut()
        log.debug("a connection is not tidied up: %s", describe_error(error))
        return None
    return thread
