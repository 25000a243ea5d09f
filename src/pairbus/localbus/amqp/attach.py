"""The attach of a link: its address is resolved and authorized, and the link gets a handler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pairbus.localbus import bus_errors
from pairbus.localbus.addresses import Address, locate
from pairbus.localbus.auth import LISTEN, SEND
from pairbus.localbus.bus_errors import BusError
from pairbus.localbus.entities.hubs import Hub
from pairbus.localbus.entities.queues import Queue
from pairbus.localbus.entities.topics import Topic

from . import engine
from .consumers import Consumer
from .engine import lib
from .hub_consumer import attach_hub_consumer, partition_of
from .links import LinkHandler, copy_termini
from .producers import Producer
from .request_nodes import CbsLink, EntityManagementLink, NamespaceManagementLink, ReplyLink, RequestLink
from .session_waiter import SESSION_FILTER, attach_session_receiver

if TYPE_CHECKING:
    from .connection import AmqpConnection

_MAX_BATCH_PROPERTY = "com.microsoft:max-message-batch-size"
#: The service takes no larger batch, however large one message may be.
_MAX_BATCH_BYTES = 1024 * 1024


def attach(connection: AmqpConnection, link: Any) -> LinkHandler | None:
    """Open a link and return its handler; None if it waits for a session, was opened with one, or gets no answer."""
    incoming = bool(lib.pn_link_is_receiver(link))
    terminus = lib.pn_link_remote_target(link) if incoming else lib.pn_link_remote_source(link)
    if lib.pn_terminus_get_type(terminus) == lib.PN_COORDINATOR:
        raise BusError(bus_errors.NOT_IMPLEMENTED, "Transactions are not supported by localbus.")
    text = engine.address(terminus)
    if not text:
        raise BusError(bus_errors.INVALID_FIELD, "The attach names no entity.")
    if text.rsplit("/", 1)[-1].lower() == "$cbs":
        return _attach_node(connection, link, incoming, "$cbs")
    address = locate(text, connection.server.broker)
    if address.entity.lower() == "$management":  # Event Hubs has one node for all hubs: each request names its hub
        return _attach_node(connection, link, incoming, "$management")
    path = address.full_path
    faults = connection.server.faults
    if faults.is_black_hole(path):
        connection.unanswered_links[link] = path
        return None
    right = None if address.management else SEND if incoming else LISTEN
    connection.authorize(address.path, right)
    fault = faults.on_attach(path)
    if fault is not None:
        raise fault
    target = connection.server.broker.find(address)
    if address.management:
        return _attach_node(connection, link, incoming, path, (address, target))
    if incoming:
        if address.sub_queue is not None or address.subscription is not None:
            raise BusError(bus_errors.NOT_ALLOWED, f"Messages cannot be sent to '{text}' itself.")
        return _attach_sender(connection, link, path, address, target)
    return _attach_receiver(connection, link, path, address, target)


def _attach_node(
    connection: AmqpConnection,
    link: Any,
    incoming: bool,
    path: str,
    entity: tuple[Address, Queue | Topic | Hub] | None = None,
) -> LinkHandler:
    """Open a link to `$cbs` or to a management node, for requests or for replies."""
    copy_termini(link)
    if not incoming:
        replies = ReplyLink(connection, link, path)
        lib.pn_link_open(link)
        return replies
    requests: RequestLink
    if entity is not None:
        requests = EntityManagementLink(connection, link, path, *entity)
    else:
        requests = (CbsLink if path == "$cbs" else NamespaceManagementLink)(connection, link, path)
    requests.start()
    return requests


def _attach_sender(
    connection: AmqpConnection, link: Any, path: str, address: Address, target: Queue | Topic | Hub
) -> Producer:
    connection.server.broker.check_send(target)
    if address.partition is not None:
        partition_of(target, address)
    copy_termini(link)
    producer = Producer(connection, link, path, target, address.partition)
    batch = engine.ulong(min(producer.limit, _MAX_BATCH_BYTES))
    engine.write(lib.pn_link_properties(link), {engine.symbol(_MAX_BATCH_PROPERTY): batch})
    producer.start()
    return producer


def _attach_receiver(
    connection: AmqpConnection, link: Any, path: str, address: Address, target: Queue | Topic | Hub
) -> LinkHandler | None:
    if isinstance(target, Hub):
        return attach_hub_consumer(connection, link, path, partition_of(target, address), address.consumer_group)
    if not isinstance(target, Queue):
        raise BusError(bus_errors.NOT_ALLOWED, f"'{address.path}' is a topic: receive from one of its subscriptions.")
    connection.server.broker.check_receive(target)
    filters = engine.read(lib.pn_terminus_filter(lib.pn_link_remote_source(link)))
    if isinstance(filters, dict) and SESSION_FILTER in filters:
        attach_session_receiver(connection, link, path, target, filters[SESSION_FILTER])
        return None
    if target.sessions is not None:
        raise BusError(
            bus_errors.NOT_ALLOWED,
            "It is not possible for an entity that requires sessions to create a non-sessionful message receiver. "
            f"Entity: '{target.path}'.",
        )
    copy_termini(link)
    consumer = Consumer(connection, link, path, target, None)
    lib.pn_link_open(link)
    return consumer
