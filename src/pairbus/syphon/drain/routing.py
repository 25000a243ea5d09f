"""Where the messages of one pass go: from what an envelope says to a destination on a host that this syphon knows."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Callable
from typing import TYPE_CHECKING

from pairbus.domain.envelope.property_names import NAMESPACE, PATH

from .destination import Destination, Owner
from .flow_control import Pace
from .hosts import Host

if TYPE_CHECKING:
    from .drain import Drain


#: No entity has a longer path: 260 characters, and the same again for what may be below it.
_LONGEST_PATH = 512
_SHOWN = 80


class NoRoute(Exception):
    """A message may not be sent where its envelope says: the reason, and what to say of it."""

    def __init__(self, destination: str, reason: str, said: str) -> None:
        super().__init__(said)
        self.destination = destination
        self.reason = reason


class Routes:
    """The hosts and destinations of one pass."""

    def __init__(self, drain: Drain, owner: Owner, on_turn: Callable[[], None]) -> None:
        timeout = drain.options.answer_timeout
        self.primary = Host(drain.primary, timeout)
        self._hosts: dict[str | None, Host] = {None: self.primary, drain.primary.host.lower(): self.primary}
        if drain.event_hubs is not None:
            self._hosts[drain.event_hubs.host.lower()] = Host(drain.event_hubs, timeout, event_hubs=True)
        for host in self._hosts.values():
            host.on_turn = on_turn
        self._drain = drain
        self._owner = owner
        #: By what messages say, which may name the same entity in different ways; and one by one.
        self._known: dict[tuple[str | None, str], Destination] = {}
        self._made: dict[tuple[int, str], Destination] = {}

    @property
    def destinations(self) -> list[Destination]:
        return list(self._made.values())

    def find(self, namespace: str | None, path: str) -> Destination:
        """The destination that an envelope names; raises `NoRoute` if no message may be sent there."""
        known = self._known.get((namespace, path))
        if known is None:
            known = self._known[namespace, path] = self._new(namespace, path)
        return known

    def _new(self, namespace: str | None, path: str) -> Destination:
        name = path if namespace is None else f"sb://{namespace}/{path}"
        host = self._hosts.get(None if namespace is None else namespace.lower())
        if host is None:
            assert namespace is not None
            said = f"{NAMESPACE} held '{_shown(namespace)}', which is not a namespace that this syphon sends to"
            raise NoRoute(f"sb://{_shown(namespace)}/{_shown(path)}", "pairbus:unknown-namespace", said)
        if host is self.primary:
            name = path  # by one name, whether the message names the primary or not
        if _is_no_path(path):
            shown = _shown(path)
            said = f"{PATH} held '{shown}' ({len(path)} characters), which no message can be sent to"
            raise NoRoute(name.replace(path, shown), "pairbus:bad-path", said)
        key = id(host), path.lower()
        made = self._made.get(key)
        if made is None:
            pace = self._drain.paces.setdefault(name.lower(), Pace(self._drain.options.window_messages))
            made = self._made[key] = Destination(name, path, host, pace, self._owner)
        return made

    async def close(self) -> None:
        await asyncio.gather(*(host.close() for host in set(self._hosts.values())))


def _shown(told: str) -> str:
    """What somebody has written into an envelope, as it goes into logs and the ledger: in one line, and short."""
    return repr(told if len(told) <= _LONGEST_PATH else f"{told[:_SHOWN]}…")[1:-1]


def _is_no_path(path: str) -> bool:
    """Whether no entity can have this path: the service would end a link, or answer nothing that tells so."""
    if not path.strip("/") or len(path) > _LONGEST_PATH or any(unicodedata.category(each) == "Cc" for each in path):
        return True
    return any(part.startswith("$") for part in path.split("/"))
