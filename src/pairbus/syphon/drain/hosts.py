"""The namespaces that messages go to: one connection each for a pass, made when it is first needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pairbus.options import Namespace
from pairbus.syphon.amqp.connection import Connection
from pairbus.syphon.amqp.link import LinkError


class Host:
    """A namespace that messages go to: its connection is made when the first destination asks for it."""

    def __init__(self, namespace: Namespace, timeout: float, *, event_hubs: bool = False) -> None:
        self.namespace = namespace
        #: How long anything may take to be answered.
        self.timeout = timeout
        self._event_hubs = event_hubs
        #: A batch goes to one partition of an event hub: messages that were sent one by one may not become one.
        self.takes_batches = not event_hubs
        self._lock = asyncio.Lock()
        self._connection: Connection | None = None
        self._failed: LinkError | None = None
        self.on_turn: Callable[[], None] | None = None

    def token_path(self, path: str) -> str:
        """The entity that a token is for: a partition of an event hub has none of its own. A queue of that name has."""
        return path.partition("/Partitions/")[0] if self._event_hubs else path

    async def connection(self) -> Connection:
        """The one connection of this pass; a host that could not be reached is not tried again in it."""
        async with self._lock:
            if self._failed is not None:
                raise self._failed
            if self._connection is None:
                try:
                    self._connection = await Connection.open(
                        self.namespace, event_hubs=self._event_hubs, timeout=self.timeout
                    )
                except LinkError as error:
                    self._failed = error
                    raise
                self._connection.on_turn = self.on_turn
            return self._connection

    @property
    def lost(self) -> LinkError | None:
        """Why it could not be reached, or its connection is gone."""
        return self._failed if self._connection is None else self._connection.lost

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
