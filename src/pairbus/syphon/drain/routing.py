"""Routing: from the namespace and path in an envelope to a destination, on a connection per namespace."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Callable
from typing import TYPE_CHECKING

from pairbus.domain.envelope.property_names import NAMESPACE, PATH
from pairbus.options import Namespace
from pairbus.syphon.amqp.connection import Connection
from pairbus.syphon.amqp.link import LinkError

from .destination import DeliveryEvents, Destination
from .flow_control import SendWindow

if TYPE_CHECKING:
    from .drain import Drain


#: Entity paths have at most 260 characters; as many again for subscriptions and partitions below them.
_LONGEST_PATH = 512
_SHOWN = 80


class NoRouteError(Exception):
    """The refusal to send a message where its envelope says, with the dead-letter reason."""

    def __init__(self, destination: str, reason: str, description: str) -> None:
        super().__init__(description)
        self.destination = destination
        self.reason = reason


class Host:
    """A namespace that messages are sent to, with one connection for a pass, opened for the first destination."""

    def __init__(self, namespace: Namespace, timeout: float, *, event_hubs: bool = False) -> None:
        self.namespace = namespace
        self.timeout = timeout
        self._event_hubs = event_hubs
        #: False for Event Hubs, which gives a batch to one partition: events that were sent singly must stay single.
        self.takes_batches = not event_hubs
        self._lock = asyncio.Lock()
        self._connection: Connection | None = None
        self._error: LinkError | None = None
        self.on_input_handled: Callable[[], None] | None = None

    def token_path(self, path: str) -> str:
        """Return the entity that needs a token: partitions of an event hub share the hub's."""
        return path.partition("/Partitions/")[0] if self._event_hubs else path

    async def connection(self) -> Connection:
        """Return the connection of this pass, opened once; `LinkError` if that failed: it is not tried again."""
        async with self._lock:
            if self._error is not None:
                raise self._error
            if self._connection is None:
                try:
                    self._connection = await Connection.open(
                        self.namespace, event_hubs=self._event_hubs, timeout=self.timeout
                    )
                except LinkError as error:
                    self._error = error
                    raise
                self._connection.on_input_handled = self.on_input_handled
            return self._connection

    @property
    def lost(self) -> LinkError | None:
        """The error that kept the connection from opening, or ended it."""
        return self._error if self._connection is None else self._connection.lost

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


class RoutingTable:
    """The hosts and destinations of one pass."""

    def __init__(self, drain: Drain, events: DeliveryEvents, on_input_handled: Callable[[], None]) -> None:
        timeout = drain.options.answer_timeout
        self.primary = Host(drain.primary, timeout)
        self._hosts: dict[str | None, Host] = {None: self.primary, drain.primary.host.lower(): self.primary}
        if drain.event_hubs is not None:
            self._hosts[drain.event_hubs.host.lower()] = Host(drain.event_hubs, timeout, event_hubs=True)
        for host in self._hosts.values():
            host.on_input_handled = on_input_handled
        self._drain = drain
        self._events = events
        #: Destinations by namespace and path as envelopes spell them, and once each by host and path in lower case.
        self._by_spelling: dict[tuple[str | None, str], Destination] = {}
        self._by_entity: dict[tuple[int, str], Destination] = {}

    @property
    def destinations(self) -> list[Destination]:
        return list(self._by_entity.values())

    def destination_for(self, namespace: str | None, path: str) -> Destination:
        """Return the destination that an envelope names; raises `NoRouteError` if no message may be sent there."""
        found = self._by_spelling.get((namespace, path))
        if found is None:
            found = self._by_spelling[namespace, path] = self._resolve(namespace, path)
        return found

    def _resolve(self, namespace: str | None, path: str) -> Destination:
        name = path if namespace is None else f"sb://{namespace}/{path}"
        host = self._hosts.get(None if namespace is None else namespace.lower())
        if host is None:
            assert namespace is not None
            why = f"{NAMESPACE} held '{_printable(namespace)}', which is not a namespace that this syphon sends to"
            raise NoRouteError(f"sb://{_printable(namespace)}/{_printable(path)}", "pairbus:unknown-namespace", why)
        if host is self.primary:
            name = path  # one name, even if the envelope names the primary
        if not _is_entity_path(path):
            shown = _printable(path)
            why = f"{PATH} held '{shown}' ({len(path)} characters), which no message can be sent to"
            raise NoRouteError(name.replace(path, shown), "pairbus:bad-path", why)
        key = id(host), path.lower()
        found = self._by_entity.get(key)
        if found is None:
            window = self._drain.send_windows.setdefault(name.lower(), SendWindow(self._drain.options.window_messages))
            found = self._by_entity[key] = Destination(name, path, host, window, self._events)
        return found

    async def close(self) -> None:
        await asyncio.gather(*(host.close() for host in set(self._hosts.values())))


def _printable(text: str) -> str:
    """Return text from an envelope for logs and the ledger: escaped to one line, and short."""
    return repr(text if len(text) <= _LONGEST_PATH else f"{text[:_SHOWN]}…")[1:-1]


def _is_entity_path(path: str) -> bool:
    """Return False for a path that no entity can have: the service would end the link, or not answer."""
    if not path.strip("/") or len(path) > _LONGEST_PATH or any(unicodedata.category(each) == "Cc" for each in path):
        return False
    return not any(part.startswith("$") for part in path.split("/"))
