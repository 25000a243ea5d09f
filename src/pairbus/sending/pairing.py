"""A pairing: two namespaces, their backlog queues and the entities that are sent to, from opening to closing."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, NoReturn

from pairbus.errors import OptionError, PairedNamespaceClosedError, PairingError
from pairbus.options import Namespace, PairingOptions, refuse_same
from pairbus.runtime.credential import deadline_credential
from pairbus.runtime.redaction import describe_error

from . import events
from .backlog import Backlog
from .connections import ConnectionPool, ConnectionWatchdog
from .credential_check import CredentialCheck, KeyCheck, TokenCheck, gives_tokens, is_for_all
from .embedded_syphon import EmbeddedSyphon
from .entity import Entity, entity_name
from .event_hubs import PairedEventHubProducer, check_event_hubs, event_hub_sender
from .events import Announcer, Event
from .provisioning import provision
from .sdk.clients import TOKEN_SCOPE, sender_to, service_bus_client
from .sdk.clone_error import clone_error
from .sender import PairedSender
from .status import Operations, PairingStatus

#: Seconds that one half may stay open when the other is closed, and that closing waits for connections.
_HALF_SECONDS = 5.0
#: Seconds that one management call may take.
_MANAGEMENT_SECONDS = 30.0


def pair_namespaces(
    primary: Namespace,
    secondary: Namespace,
    options: PairingOptions | None = None,
    *,
    event_hubs: Namespace | None = None,
) -> PairedNamespace:
    """Pair two namespaces; return when as many backlog queues as possible were found or made.

    Parameters
    ----------
    primary
        The namespace that messages are sent to.
    secondary
        The namespace of the backlog queues.
    options
        All else; the defaults if not given.
    event_hubs
        A namespace of Event Hubs, whose hubs are sent to as well; it needs `pairbus[eventhubs]`.

    Raises
    ------
    OptionError
        An argument is of the wrong class, or two namespaces are the same.
    PairingError
        A credential is refused for good.
    ProvisioningError
        There is no backlog queue that could be used.
    """
    given: Any
    for name, given in (("primary", primary), ("secondary", secondary)):
        if not isinstance(given, Namespace):
            raise OptionError(f"{name} must be a Namespace, not {type(given).__name__}")
    if event_hubs is not None and not isinstance(event_hubs, Namespace):
        raise OptionError(f"event_hubs must be a Namespace, not {type(event_hubs).__name__}")
    options = PairingOptions() if options is None else options
    if not isinstance(options, PairingOptions):
        raise OptionError(f"options must be PairingOptions, not {type(options).__name__}")
    refuse_same(primary, secondary)
    if event_hubs is not None:
        check_event_hubs(event_hubs, primary, secondary)
    return PairedNamespace(primary, secondary, options, event_hubs)


def _check_credentials(primary: Namespace, secondary: Namespace, event_hubs: Namespace | None) -> list[CredentialCheck]:
    """Start to try the credentials that provisioning does not use."""
    found: list[CredentialCheck] = []
    if not gives_tokens(primary):
        if is_for_all(primary):
            found.append(KeyCheck("the primary", primary))
    elif primary.credential is not secondary.credential:
        found.append(TokenCheck("the primary", primary, TOKEN_SCOPE))
    if event_hubs is not None and gives_tokens(event_hubs):
        found.append(TokenCheck("the event hubs namespace", event_hubs, event_hub_sender().TOKEN_SCOPE))
    return found


class Half:
    """One of the two namespaces of a pairing."""

    def __init__(self, pairing: PairedNamespace, role: str, namespace: Namespace) -> None:
        self._pairing = pairing
        self.role = role
        self.namespace = namespace
        self.closed = False
        self.error: Exception | None = None

    def close(self) -> None:
        """Close this half; unless the other is closed within 5 s, it is faulted."""
        if not self._pairing.forked:
            self._pairing._half_closed(self)

    def fault(self, error: Exception) -> None:
        """Declare that this half cannot go on: sends raise this error from now on."""
        self._pairing.refuse_fork()
        given: Any = error
        if not isinstance(given, Exception):
            raise TypeError(
                f"fault() takes the exception that sends are to raise, such as OSError(), not a {type(given).__name__}"
            )
        self._pairing._half_faulted(self, error)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"faulted: {describe_error(self.error)}" if self.error else "open"
        return f"<{self.role} {self.namespace.host}: {state}>"


class PairedNamespace:
    """Two paired namespaces, ready to be sent to. Made by `pair_namespaces`; a context manager."""

    def __init__(
        self, primary: Namespace, secondary: Namespace, options: PairingOptions, event_hubs: Namespace | None = None
    ) -> None:
        self.options = options
        self.event_hubs = event_hubs
        self.closing = threading.Event()
        self._pid = os.getpid()
        self._operations = Operations()
        # Referenced here, so that the last tokens outlive the connections that they were for.
        self._credentials = [
            deadline_credential(each.credential) for each in (primary, secondary, event_hubs) if each is not None
        ]
        checks = _check_credentials(primary, secondary, event_hubs)
        provisioned = provision(primary, secondary, options.backlog_queue_count, self._operations, _MANAGEMENT_SECONDS)
        for check in checks:
            check.check()
        self._missing = provisioned.missing
        self._lock = threading.Lock()
        self._entities: dict[str, Entity] = {}
        #: The error that every send raises once a half is closed or faulted.
        self.ended: Exception | None = None
        self._finished = False
        self._fault_timer: threading.Timer | None = None
        self.primary = Half(self, "primary", primary)
        self.secondary = Half(self, "secondary", secondary)
        self._watchdog = ConnectionWatchdog()
        self._announcer = Announcer(options.on_event)
        self._primary_client = service_bus_client(primary)
        self.backlog = Backlog(
            service_bus_client(secondary),
            provisioned,
            options,
            self._watchdog,
            self._operations,
            self._emit,
            self.closing,
        )
        self._syphon: EmbeddedSyphon | None = None
        if options.enable_syphon:
            try:
                self._syphon = EmbeddedSyphon(primary, secondary, event_hubs, options, self._operations, self._emit)
            except BaseException:
                self.close()
                raise
        for path, why in provisioned.missing.items():
            self._emit(events.QUEUE_MISSING, queue=path, error=why)
        for queue in provisioned.queues:
            if queue.differences:
                self._emit(events.QUEUE_DIFFERS, queue=queue.path, differences=dict(queue.differences))

    def get_queue_sender(
        self, queue_name: str, *, client_identifier: str | None = None, socket_timeout: float | None = None
    ) -> PairedSender:
        """Return a sender to a queue of the primary.

        Senders to one entity share its connections; the first one's `socket_timeout` holds for all of them.
        """
        return self._sender(queue_name, client_identifier, socket_timeout)

    def get_topic_sender(
        self, topic_name: str, *, client_identifier: str | None = None, socket_timeout: float | None = None
    ) -> PairedSender:
        """Return a sender to a topic of the primary; see `get_queue_sender`."""
        return self._sender(topic_name, client_identifier, socket_timeout)

    def get_event_hub_producer(self, eventhub_name: str) -> PairedEventHubProducer:
        """Return a producer to an event hub of the namespace that was given as `event_hubs`."""
        self.check()
        return PairedEventHubProducer(self, eventhub_name)

    def _sender(self, path: Any, client_identifier: str | None, socket_timeout: float | None) -> PairedSender:
        self.check()
        if not isinstance(path, str) or not path.strip("/ "):
            raise ValueError(f"the name of a queue or topic must be a string that is not empty, not {path!r}")
        make = partial(sender_to, self._primary_client, path, socket_timeout=socket_timeout)
        return PairedSender(self, self.entity(path, make), client_identifier)

    def entity(self, path: str, make: Callable[[], Any], event_hubs: str | None = None) -> Entity:
        """Return the one entity of that path; `make` makes a sender to it, `event_hubs` is the host of a hub."""
        # The service does not distinguish names by case, so neither does an entity's health.
        path = path.strip("/")
        key = entity_name(path, event_hubs).lower()
        with self._lock:
            entity = self._entities.get(key)
            if entity is None:
                pool = ConnectionPool(make, self._watchdog)
                entity = Entity(path, pool, self.options, self._operations, self._emit, self.closing, event_hubs)
                self._entities[key] = entity
        return entity

    def status(self) -> PairingStatus:
        """Return all that is known of the pairing, at this moment."""
        self.refuse_fork()
        with self._lock:
            entities = dict(self._entities)
        return PairingStatus(
            primary=self.primary.namespace.host,
            secondary=self.secondary.namespace.host,
            entities={entity.name: entity.status() for entity in entities.values()},
            queues=self.backlog.status(),
            queues_asked=self.options.backlog_queue_count,
            missing=dict(self._missing),
            operations=self._operations.picture(send=sum(entity.billed for entity in entities.values())),
            closed=self.primary.closed and self.secondary.closed,
            event_hubs=self.event_hubs.host if self.event_hubs is not None else None,
        )

    @property
    def backlog_queue_count(self) -> int:
        """The number of backlog queues that can be used."""
        return self.options.backlog_queue_count - len(self._missing)

    def __repr__(self) -> str:
        return f"<PairedNamespace {self.primary!r} {self.secondary!r}>"

    def _emit(self, kind: str, *, entity: str | None = None, queue: str | None = None, **details: Any) -> None:
        self._announcer.announce(Event(kind, self.primary.namespace.name, entity, queue, details))
        if kind == events.FAILED_BACK and self._syphon is not None:
            self._syphon.wake()

    def check(self) -> None:
        """Raise if the pairing has ended, or if this process was forked from the one that opened it."""
        if self.ended is not None:
            raise clone_error(self.ended)
        self.refuse_fork()

    def refuse_fork(self) -> None:
        """Raise in a process that was forked, where another thread's lock may be held for ever."""
        if self.forked:
            raise PairingError(
                f"this pairing was opened in process {self._pid} and is used in {os.getpid()}, which a fork has made: "
                "connections and threads do not survive a fork. Call pair_namespaces in the process that sends"
            )

    @property
    def forked(self) -> bool:
        """True in a process that was forked from the one that opened the pairing; the connections are not its own."""
        return os.getpid() != self._pid

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a PairedNamespace and its senders cannot be pickled: they hold connections and credentials. Call "
            "pair_namespaces where it is used, on Spark for example inside foreachPartition"
        )

    def __enter__(self) -> PairedNamespace:
        self.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close both halves, stop pings and syphon; sends that still run after 5 s are cut. Later calls do nothing."""
        if self.forked:
            return
        with self._lock:
            if self._finished:
                return
            self.primary.closed = self.secondary.closed = True
            if self._fault_timer is not None:
                self._fault_timer.cancel()
            self.ended = self._closed_error("the pairing is closed")
        deadline = time.monotonic() + _HALF_SECONDS
        ending = self.backlog.close()
        for entity in self._stop_pings():
            ending += entity.pool.close()
        for thread in ending:
            thread.join(max(deadline - time.monotonic(), 0.0))
        if self._syphon is not None:
            self._syphon.join(max(deadline - time.monotonic(), 0.0))
        self._watchdog.stop(deadline)
        self._finish(deadline)  # last: a close that Ctrl-C interrupts can be called again

    def _finish(self, deadline: float) -> None:
        with self._lock:
            if self._finished:
                return  # closed by another thread at the same time
            self._finished = True
        self._emit(events.CLOSED)
        self._announcer.close(max(deadline - time.monotonic(), 0.1))

    def _stop_pings(self) -> list[Entity]:
        """Stop pings and syphon, and wake the senders that wait to try again; return all entities."""
        self.closing.set()
        if self._syphon is not None:
            self._syphon.stop()
        with self._lock:
            entities = list(self._entities.values())
        for entity in entities:
            entity.stop_pings()
        return entities

    def _closed_error(self, what: str) -> PairedNamespaceClosedError:
        primary, secondary = self.primary.namespace.host, self.secondary.namespace.host
        return PairedNamespaceClosedError(
            f"{what} (primary {primary}, secondary {secondary})", primary=primary, secondary=secondary
        )

    def _other(self, half: Half) -> Half:
        return self.secondary if half is self.primary else self.primary

    def _half_closed(self, half: Half) -> None:
        other = self._other(half)
        with self._lock:
            if half.closed:
                return
            if not other.closed:
                half.closed = True
                half.error = self._closed_error(f"the {half.role} half is closed")
                self.ended = self.ended or half.error
                self._fault_timer = threading.Timer(_HALF_SECONDS, self._fault_other, (half, other))
                self._fault_timer.daemon = True
                self._fault_timer.name = f"pairbus-half {half.role}"
                self._fault_timer.start()
        if other.closed:
            self.close()
        else:
            self._stop_pings()

    def _fault_other(self, closed: Half, other: Half) -> None:
        if not other.closed:
            self._half_faulted(
                other,
                self._closed_error(
                    f"the {other.role} half is faulted: the {closed.role} half was closed and it was not within "
                    f"{_HALF_SECONDS:g} s"
                ),
            )

    def _half_faulted(self, half: Half, error: Exception) -> None:
        with self._lock:
            if half.closed or half.error is not None:
                return
            half.error = self.ended = error
        self._stop_pings()
        self._emit(events.HALF_FAULTED, half=half.role, error=describe_error(error))
        if self._syphon is not None:
            # The syphon needs both halves.
            self._half_faulted(self._other(half), error)
