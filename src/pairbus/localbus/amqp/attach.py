"""A client wants a link: what it asks for, whether it may, and which handler it gets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pairbus.domain.amqp.codec import Described, Symbol, ULong
from pairbus.localbus import bus_errors as conditions
from pairbus.localbus.addresses import Address, locate
from pairbus.localbus.auth import LISTEN, SEND
from pairbus.localbus.bus_errors import BusError
from pairbus.localbus.entities.hubs import Hub, Partition
from pairbus.localbus.entities.queues import Queue
from pairbus.localbus.entities.sessions import Session
from pairbus.localbus.entities.topics import Topic

from . import engine
from .consumers import Consumer, HubConsumer
from .engine import lib
from .links import LinkHandler
from .producers import Producer
from .request_nodes import CbsRequests, ManagementRequests, NamespaceRequests, Replies, Requests

if TYPE_CHECKING:
    from .connection import AmqpConnection

DOTNET_EPOCH_MS = 62_135_596_800_000
SESSION_FILTER = "com.microsoft:session-filter"
_OWNER_LEVEL = "com.microsoft:epoch"
_DEFAULT_WAIT = 60.0
#: However large one message may be, the service takes no batch that is larger.
_MAX_BATCH = 1024 * 1024
_SELECTOR = re.compile(r"amqp\.annotation\.x-opt-(?P<name>[a-z-]+)\s*(?P<op>>=?)\s*'(?P<value>[^']*)'")


def attach(connection: AmqpConnection, link: Any) -> LinkHandler | None:
    """The handler of a new link, open; None where it must wait (a session) or gets no answer (a fault)."""
    incoming = bool(lib.pn_link_is_receiver(link))
    terminus = lib.pn_link_remote_target(link) if incoming else lib.pn_link_remote_source(link)
    if lib.pn_terminus_get_type(terminus) == lib.PN_COORDINATOR:
        raise BusError(conditions.NOT_IMPLEMENTED, "Transactions are not supported by localbus.")
    text = engine.address(terminus)
    if not text:
        raise BusError(conditions.INVALID_FIELD, "The attach names no entity.")
    if text.rsplit("/", 1)[-1].lower() == "$cbs":
        return _node(connection, link, incoming, "$cbs")
    address = locate(text, connection.server.broker)
    if address.entity.lower() == "$management":  # how Event Hubs is asked: each request names its hub
        return _node(connection, link, incoming, "$management")
    path = address.place
    faults = connection.server.faults
    if faults.is_silent(path):
        connection.unanswered[link] = path
        return None
    right = None if address.management else SEND if incoming else LISTEN
    connection.authorize(address.path, right)
    refused = faults.on_attach(path)
    if refused is not None:
        raise refused
    target = connection.server.broker.find(address)
    if address.management:
        return _node(connection, link, incoming, path, (address, target))
    if incoming:
        if address.sub_queue is not None or address.subscription is not None:
            raise BusError(conditions.NOT_ALLOWED, f"Messages cannot be sent to '{text}' itself.")
        connection.server.broker.check_send(target)
        if address.partition is not None:
            _partition(target, address)
        echo(link)
        producer = Producer(connection, link, path, target, address.partition)
        batch = engine.ulong(min(producer.limit, _MAX_BATCH))
        engine.write(lib.pn_link_properties(link), {engine.symbol("com.microsoft:max-message-batch-size"): batch})
        producer.start()
        return producer
    if isinstance(target, Hub):
        return _hub_consumer(connection, link, path, _partition(target, address), address.consumer_group)
    if not isinstance(target, Queue):
        raise BusError(conditions.NOT_ALLOWED, f"'{address.path}' is a topic: receive from one of its subscriptions.")
    connection.server.broker.check_receive(target)
    return _consumer(connection, link, path, target)


def _node(
    connection: AmqpConnection,
    link: Any,
    incoming: bool,
    path: str,
    entity: tuple[Address, Queue | Topic | Hub] | None = None,
) -> LinkHandler:
    echo(link)
    if not incoming:
        replies = Replies(connection, link, path)
        lib.pn_link_open(link)
        return replies
    requests: Requests
    if entity is not None:
        requests = ManagementRequests(connection, link, path, *entity)
    else:
        requests = (CbsRequests if path == "$cbs" else NamespaceRequests)(connection, link, path)
    requests.start()
    return requests


def echo(link: Any) -> None:
    """Answer with the client's own termini and settle modes, in their exact types."""
    lib.pn_terminus_copy(lib.pn_link_source(link), lib.pn_link_remote_source(link))
    lib.pn_terminus_copy(lib.pn_link_target(link), lib.pn_link_remote_target(link))
    lib.pn_link_set_snd_settle_mode(link, lib.pn_link_remote_snd_settle_mode(link))
    lib.pn_link_set_rcv_settle_mode(link, lib.pn_link_remote_rcv_settle_mode(link))


# --- receivers -------------------------------------------------------------------------------------------


def _consumer(connection: AmqpConnection, link: Any, path: str, queue: Queue) -> Consumer | None:
    filters = engine.read(lib.pn_terminus_filter(lib.pn_link_remote_source(link)))
    asked = isinstance(filters, dict) and SESSION_FILTER in filters
    if not asked:
        if queue.sessions is not None:
            raise BusError(
                conditions.NOT_ALLOWED,
                "It is not possible for an entity that requires sessions to create a non-sessionful message receiver. "
                f"Entity: '{queue.path}'.",
            )
        echo(link)
        consumer = Consumer(connection, link, path, queue, None)
        lib.pn_link_open(link)
        return consumer
    wanted = filters[SESSION_FILTER]
    if isinstance(wanted, Described) and not isinstance(wanted.descriptor, (Symbol, ULong)):
        raise BusError(conditions.INVALID_FIELD, "The session filter's descriptor is neither a symbol nor a ulong.")
    name = wanted.value if isinstance(wanted, Described) else wanted
    if name is not None and not isinstance(name, str):
        raise BusError(conditions.INVALID_FIELD, "The session filter is neither a string nor null.")
    waiting = SessionWaiter(connection, link, path, queue, None if name is None else str(name))
    if waiting.offer(connection.server.now()):
        return None
    connection.server.dispatcher.wait(queue, waiting)
    connection.server.schedule()
    waiting.stand_in()
    return None


class SessionWaiter:
    """A receiver that asked for a session: opened when it has one, refused when its time is over."""

    def __init__(self, connection: AmqpConnection, link: Any, path: str, queue: Queue, name: str | None) -> None:
        self._connection = connection
        self._link = link
        self._path = path
        self.queue = queue
        self._name = name
        properties = engine.read(lib.pn_link_remote_properties(link))
        wait = properties.get("com.microsoft:timeout") if isinstance(properties, dict) else None
        seconds = wait / 1000 if isinstance(wait, int) and wait > 0 else _DEFAULT_WAIT
        self.deadline = connection.server.now() + seconds
        self._waits = self._cancelled = False

    def offer(self, now: float) -> bool:
        server = self._connection.server
        if self._cancelled or not self._connection.alive:
            return True
        if server.faults.is_silent(self._path):
            return False
        try:
            server.broker.check_receive(self.queue)
            if self._waits and self.queue.has_free_session():
                self._check_fault()
            session = self.queue.accept_session(self._name, object(), now)
        except BusError as error:
            self.give_up(error)
            return True
        if session is None:
            self._waits = True
            return False
        self._open(session)
        return True

    def _check_fault(self) -> None:
        """A link that is opened after a while is refused as one that comes now."""
        error = self._connection.server.faults.on_attach(self._path)
        if error is not None:
            raise error

    def _open(self, session: Session) -> None:
        link = self._link
        echo(link)
        filters = engine.read(lib.pn_terminus_filter(lib.pn_link_remote_source(link)))
        wanted = filters[SESSION_FILTER]
        filled: Any = session.id
        if isinstance(wanted, Described):
            filled = engine.Described(_symbolic(wanted.descriptor), session.id)
        data = lib.pn_terminus_filter(lib.pn_link_source(link))
        engine.write(data, {engine.symbol(SESSION_FILTER): filled})
        ticks = (int(session.until * 1000) + DOTNET_EPOCH_MS) * 10_000
        engine.write(lib.pn_link_properties(link), {engine.symbol("com.microsoft:locked-until-utc"): ticks})
        consumer = Consumer(self._connection, link, self._path, self.queue, session)
        lib.pn_link_open(link)
        self._connection.adopt(consumer)
        self._connection.wants_output()

    def give_up(self, error: BusError) -> None:
        from .connection import refuse_attach

        if self._cancelled or not self._connection.alive:
            return
        self._cancelled = True
        if self._connection.server.faults.is_silent(self._path):
            self._connection.unanswered[self._link] = self._path
        else:
            refuse_attach(self._link, error)
            self._connection.wants_output()

    def stand_in(self) -> None:
        """Take the link's place until it has a session: to notice that the client went away."""
        self._connection.adopt(_Pending(self._connection, self._link, self._path, self))

    def cancel(self) -> None:
        self._cancelled = True
        self._connection.server.dispatcher.stop_waiting(self.queue, self)


class _Pending(LinkHandler):
    right = LISTEN

    def __init__(self, connection: AmqpConnection, link: Any, path: str, waiter: SessionWaiter) -> None:
        super().__init__(connection, link, path)
        self._waiter = waiter

    def refuse(self, error: BusError) -> None:
        if self.open and self.connection.alive:
            self._waiter.give_up(error)
            self.connection.forget(self)

    def on_flow(self) -> None:
        """A black hole has ended, perhaps: what came meanwhile is offered again."""
        self.connection.server.broker.ready(self._waiter.queue)

    def on_closed(self) -> None:
        self._waiter.cancel()


def _symbolic(descriptor: Any) -> Any:
    return engine.symbol(descriptor) if isinstance(descriptor, Symbol) else engine.ulong(int(descriptor))


# --- event hubs ------------------------------------------------------------------------------------------


def _partition(target: Any, address: Address) -> Partition:
    if not isinstance(target, Hub):
        raise conditions.not_found(f"{address.entity}/Partitions/{address.partition}")
    if address.partition is None:
        raise BusError(conditions.NOT_ALLOWED, f"'{address.entity}' is read by partition.")
    return target.partition(address.partition)


def _hub_consumer(
    connection: AmqpConnection, link: Any, path: str, partition: Partition, group: str | None
) -> HubConsumer:
    filters = engine.read(lib.pn_terminus_filter(lib.pn_link_remote_source(link)))
    position = 0
    for wanted in filters.values() if isinstance(filters, dict) else ():
        text = wanted.value if isinstance(wanted, Described) else wanted
        found = _SELECTOR.search(str(text))
        if found:
            position = _position(partition, found["name"], found["op"] == ">=", found["value"])
    properties = engine.read(lib.pn_link_remote_properties(link))
    wanted = properties.get(_OWNER_LEVEL) if isinstance(properties, dict) else None
    owner_level = int(wanted) if isinstance(wanted, int) else None
    readers = connection.server.hub_readers.get(partition, ())
    _take_over([each for each in readers if each.group == (group or "").lower()], owner_level)
    echo(link)
    consumer = HubConsumer(connection, link, path, partition, position, (group or "").lower(), owner_level)
    lib.pn_link_open(link)
    return consumer


def _take_over(others: list[HubConsumer], owner_level: int | None) -> None:
    """In a consumer group an owner of a partition reads alone: a lower one yields, or is refused when it comes."""
    highest = max((each.owner_level for each in others if each.owner_level is not None), default=None)
    if highest is not None and (owner_level is None or owner_level < highest):
        raise BusError(
            conditions.STOLEN,
            f"A receiver with a higher epoch of '{highest}' already exists. Make sure you are creating receivers with "
            "increasing epoch values, or that all old epoch receivers are closed or disconnected.",
        )
    for each in others if owner_level is not None else ():
        each.refuse(
            BusError(
                conditions.STOLEN,
                f"A new receiver with a higher epoch of '{owner_level}' is created hence the current receiver with "
                f"epoch '{each.owner_level or 0}' is getting disconnected.",
            )
        )


def _position(partition: Partition, name: str, inclusive: bool, value: str) -> int:
    """The index of the first event that a consumer's position names."""
    if value in ("@latest", "-1"):
        return len(partition.events) if value == "@latest" else 0
    try:
        number = int(value)
    except ValueError:
        raise BusError(conditions.ARGUMENT_ERROR, f"The position '{value}' is no number.") from None
    for index, event in enumerate(partition.events):
        at = {"offset": event.offset, "sequence-number": event.sequence}.get(name, int(event.enqueued_at * 1000))
        if at > number or (inclusive and at == number):
            return index
    return len(partition.events)
