"""A client that reads a partition of an event hub: its start position, and the consumer that owns a partition."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pairbus.domain.amqp.codec import Described
from pairbus.localbus import bus_errors
from pairbus.localbus.addresses import Address
from pairbus.localbus.auth import LISTEN
from pairbus.localbus.bus_errors import BusError
from pairbus.localbus.entities.hubs import Hub, Partition

from . import engine
from .consumers import MAX_BUFFERED_BYTES
from .engine import lib
from .links import OutgoingLink, copy_termini

if TYPE_CHECKING:
    from .connection import AmqpConnection

_OWNER_LEVEL = "com.microsoft:epoch"
_SELECTOR = re.compile(r"amqp\.annotation\.x-opt-(?P<name>[a-z-]+)\s*(?P<op>>=?)\s*'(?P<value>[^']*)'")


class HubConsumer(OutgoingLink):
    """A client's receiver from a partition, from a position on; `owner_level` is None unless it is exclusive."""

    right = LISTEN

    def __init__(
        self,
        connection: AmqpConnection,
        link: Any,
        path: str,
        partition: Partition,
        position: int,
        group: str,
        owner_level: int | None,
    ) -> None:
        super().__init__(connection, link, path)
        self.partition = partition
        self.position = position
        self.group = group
        self.owner_level = owner_level
        self._sends_runtime_metric = self.name.encode() in connection.runtime_metric_links
        connection.server.hub_readers.setdefault(partition, set()).add(self)

    def on_closed(self) -> None:
        self.connection.server.hub_readers.get(self.partition, set()).discard(self)

    def on_flow(self) -> None:
        self.pull()

    def pull(self) -> None:
        """Send the events after the position, as far as credit allows."""
        if not (self.connection.alive and self.open and self.connection.writable):
            return
        if self.connection.server.faults.is_black_hole(self.path):
            return
        while self.credit() > 0 and self.position < len(self.partition.events):
            if self.buffered_bytes() > MAX_BUFFERED_BYTES:
                self.connection.stalled.add(self)
                break
            event = self.partition.events[self.position]
            self.position += 1
            newest = self.partition.events[-1] if self._sends_runtime_metric else None
            body = event.delivered(newest, self.connection.server.now())
            engine.send(self.link, self.position.to_bytes(8, "big"), body, settled=True)
        else:
            self.finish_drain()
        self.connection.wants_output()


def attach_hub_consumer(
    connection: AmqpConnection, link: Any, path: str, partition: Partition, group: str | None
) -> HubConsumer:
    """Open a link that reads a partition, from the position in its filter."""
    filters = engine.read(lib.pn_terminus_filter(lib.pn_link_remote_source(link)))
    position = 0
    for value in filters.values() if isinstance(filters, dict) else ():
        text = value.value if isinstance(value, Described) else value
        found = _SELECTOR.search(str(text))
        if found:
            position = start_position(partition, found["name"], found["op"] == ">=", found["value"])
    properties = engine.read(lib.pn_link_remote_properties(link))
    epoch = properties.get(_OWNER_LEVEL) if isinstance(properties, dict) else None
    owner_level = int(epoch) if isinstance(epoch, int) else None
    group = (group or "").lower()
    readers = connection.server.hub_readers.get(partition, ())
    _take_ownership([each for each in readers if each.group == group], owner_level)
    copy_termini(link)
    consumer = HubConsumer(connection, link, path, partition, position, group, owner_level)
    lib.pn_link_open(link)
    return consumer


def partition_of(target: Any, address: Address) -> Partition:
    """Return the partition that an address names; raise a BusError if it names none."""
    if not isinstance(target, Hub):
        raise bus_errors.not_found(f"{address.entity}/Partitions/{address.partition}")
    if address.partition is None:
        raise BusError(bus_errors.NOT_ALLOWED, f"'{address.entity}' is read by partition.")
    return target.partition(address.partition)


def _take_ownership(others: list[HubConsumer], owner_level: int | None) -> None:
    """Detach the group's other consumers of a partition, or refuse the new one if another has a higher level."""
    highest = max((each.owner_level for each in others if each.owner_level is not None), default=None)
    if highest is not None and (owner_level is None or owner_level < highest):
        raise BusError(
            bus_errors.STOLEN,
            f"A receiver with a higher epoch of '{highest}' already exists. Make sure you are creating receivers with "
            "increasing epoch values, or that all old epoch receivers are closed or disconnected.",
        )
    for each in others if owner_level is not None else ():
        each.detach(
            BusError(
                bus_errors.STOLEN,
                f"A new receiver with a higher epoch of '{owner_level}' is created hence the current receiver with "
                f"epoch '{each.owner_level or 0}' is getting disconnected.",
            )
        )


def start_position(partition: Partition, name: str, inclusive: bool, value: str) -> int:
    """Return the index of the first event after a value of the annotation `name` (from it on if inclusive)."""
    if value in ("@latest", "-1"):
        return len(partition.events) if value == "@latest" else 0
    try:
        number = int(value)
    except ValueError:
        raise BusError(bus_errors.ARGUMENT_ERROR, f"The position '{value}' is not a number.") from None
    for index, event in enumerate(partition.events):
        at = {"offset": event.offset, "sequence-number": event.sequence}.get(name, int(event.enqueued_at * 1000))
        if at > number or (inclusive and at == number):
            return index
    return len(partition.events)
