"""Everything that pairbus must know of the Azure SDK beyond its documented surface, in one place.

The SDK never shows the bytes of a message. Some of its inner parts are used here and nowhere else: its encoder and its
tracing, so that a parked message is the one that would have been sent, and the list of encoded messages inside a batch,
so that parked bytes are sent by the SDK's own sender as they are. Its
connections are reached into to cut them (while TLS shakes hands, too), to tend them, and to hear why a token was
refused. `tests/integration/sending/test_sdk.py` pins all of it, `test_silent_tls.py` the handshake.
"""

from __future__ import annotations

import contextlib
import copy
import re
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageBatch,
    ServiceBusSender,
    TransportType,
)
from azure.servicebus._common.constants import JWT_TOKEN_SCOPE
from azure.servicebus._common.tracing import TraceAttributes, is_tracing_enabled, trace_message
from azure.servicebus._common.utils import create_authentication, transform_outbound_messages
from azure.servicebus._pyamqp.constants import LinkState
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import ServiceBusError

from pairbus.domain.cost import UNIT, operations_of
from pairbus.options import Namespace
from pairbus.runtime.bounded_credential import bounded

from .prepared import Prepared

#: What a credential is asked to give a token for.
TOKEN_SCOPE = JWT_TOKEN_SCOPE
#: Bytes that a batch takes beyond its messages, and a message in it beyond itself: never less than the SDK reckons.
BATCH_OVERHEAD, MESSAGE_OVERHEAD = 64, 8
#: What a backlog queue takes at least, where nobody has said how much it takes.
STANDARD_LIMIT = 256 * 1024
#: However large single messages may be, a batch may not be larger than this.
PREMIUM_BATCH_LIMIT = 1024 * 1024

#: How long an idle connection is listened to: as long as the SDK does, if nobody says otherwise.
_TENDING_SECONDS = 0.2
#: A peer that has not shaken hands by then is gone; whoever waits for less has cut the connection before.
_HANDSHAKE_SECONDS = 60.0
#: On a copy of a message: the caller's own object.
_ORIGINAL = "_pairbus_original"


# --- clients -----------------------------------------------------------------------------------------------------


def service_bus_client(namespace: Namespace, try_timeout: float) -> ServiceBusClient:
    """A client that tries once: how often, how long and when to try again is decided by the paired sender."""
    options: dict[str, Any] = {"retry_total": 0, "try_timeout": try_timeout, "use_tls": namespace.use_tls}
    if namespace.ca_file is not None:
        options["connection_verify"] = str(namespace.ca_file)
    if namespace.use_tls and port_of(namespace.host) is not None:
        # Over TLS the SDK dials 5671 whatever the host says, unless it is told so here.
        options |= {"custom_endpoint_address": f"sb://{namespace.host}", "transport_type": TransportType.Amqp}
    return ServiceBusClient(namespace.host, bounded(namespace.credential), **options)


def port_of(host: str) -> str | None:
    """The port that a host names."""
    found = re.search(r":(\d+)$", host)
    return found.group(1) if found and not host.endswith("]") else None


def sender_to(client: ServiceBusClient, path: str, socket_timeout: float | None = None) -> ServiceBusSender:
    """Return a sender to a queue or topic, without the SDK's keep-alive thread for each connection (see `tend`)."""
    sender: ServiceBusSender = client.get_queue_sender(path, keep_alive=None, socket_timeout=socket_timeout)
    mend(sender)
    return sender


def mend(sender: Any) -> None:
    """Mend three things about whatever connection a sender makes.

    The status with which a token is refused is kept, which the SDK drops when a condition comes along with it: without
    it nothing tells an entity that does not exist from a service that is out of order. And a connection is in reach of
    `shut` also while TLS shakes hands, when the SDK has nothing but a socket that is empty by then, and no bound. And
    its socket is closed when it is: of one that has broken the SDK leaves that to Python's garbage collector.
    """
    create = sender._create_handler

    def create_handler(auth: Any) -> None:
        create(auth)
        handler = sender._handler
        begin, end = handler.open, handler.close
        handler._ssl_opts = {"context": _Handshake(handler, handler._ssl_opts)}

        def open_handler(connection: Any = None) -> None:
            try:
                begin(connection=connection)
            except BaseException:
                with contextlib.suppress(AttributeError, OSError, ValueError):
                    handler._connection._transport.close()  # what has not come to a session the SDK leaves open
                raise
            authenticator = handler._cbs_authenticator
            if authenticator is not None:
                authenticator._on_execute_operation_complete = partial(_token_answered, authenticator)

        def close_handler() -> None:
            connection = handler._connection
            try:
                end()
            finally:
                with contextlib.suppress(AttributeError, OSError):
                    connection._transport.sock.close()  # none if the SDK has done so; and without TLS's goodbye

        handler.open, handler.close = open_handler, close_handler

    sender._create_handler = create_handler


def _token_answered(authenticator: Any, result: Any, status: Any, description: Any, *others: Any, **named: Any) -> None:
    type(authenticator)._on_execute_operation_complete(authenticator, result, status, description, *others, **named)
    if authenticator._token_status_code is None:
        authenticator._token_status_code = status
        authenticator._token_status_description = description


class _Handshake:
    """Stands where the SDK takes a TLS context: all that it does is to wrap a socket as the SDK would."""

    def __init__(self, handler: Any, options: Mapping[str, Any]) -> None:
        self._handler = handler
        self._options = options

    def wrap_socket(self, sock: socket.socket, **named: Any) -> Any:
        transport = self._handler._connection._transport
        wrapped = transport._wrap_socket_sni(sock, do_handshake_on_connect=False, **self._options, **named)
        transport.sock = wrapped  # in reach of `shut`, and closed by the SDK if anything fails
        wrapped.settimeout(_HANDSHAKE_SECONDS)
        wrapped.do_handshake()
        wrapped.settimeout(None)  # as the SDK has set it
        return wrapped


def token_sender(namespace: Namespace, seconds: float) -> ServiceBusSender:
    """A sender whose token is for the whole namespace; for `put_token` only."""
    sender: Any = sender_to(service_bus_client(namespace, seconds), "any", socket_timeout=seconds)
    sender._auth_uri = f"sb://{namespace.host}/"
    found: ServiceBusSender = sender
    return found


def put_token(sender: Any, seconds: float) -> None:
    """Give a token as a sender does before it attaches, and no more; raises what comes of it, or nothing in time.

    A peer that does not even greet is waited for until somebody else calls `shut`.
    """
    deadline = time.monotonic() + seconds
    sender._create_handler(create_authentication(sender))
    handler = sender._handler
    try:
        handler.open()
        while not handler.auth_complete() and time.monotonic() < deadline:
            pass  # it waits for the socket
    finally:
        connection = handler._connection
        handler.close()
        if connection is not None:  # the SDK leaves the socket of a connection that has not come to a session
            connection._transport.close()


def is_running(sender: Any) -> bool:
    """Whether a sender would send on the link that it has. After some errors the SDK has closed it, and the next send
    would open another: for as long as that takes."""
    return bool(sender._running)


def tend(sender: Any) -> None:
    """Let an idle connection say that it is alive and hear what came; raises if it is dead."""
    handler = sender._handler
    sock = handler._connection._transport.sock
    # What the SDK calls not to wait is to wait for as long as the socket does, which its user may have said.
    patience = sock.gettimeout()
    sock.settimeout(_TENDING_SECONDS)
    try:
        handler._connection.listen(wait=False)
    finally:
        with contextlib.suppress(OSError):  # closed by what it heard
            sock.settimeout(patience)
    if handler._link.get_state().value != LinkState.ATTACHED.value:  # azure-eventhub has an enumeration of its own
        raise ConnectionError("the link is detached")


def shut(sender: Any) -> None:
    """Cut a sender's connection from outside: whoever waits on it wakes up with an error."""
    handler = sender._handler
    with contextlib.suppress(AttributeError, OSError):
        sock = handler._connection._transport.sock
        if sock is not None:
            # Not TLS's own: it takes the encryption from under whoever uses it.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)


# --- messages ----------------------------------------------------------------------------------------------------


def is_many(message: Any) -> bool:
    """Whether the SDK would take this as several messages: a batch, or anything that can be iterated over."""
    if isinstance(message, (ServiceBusMessage, Mapping)):
        return False
    return isinstance(message, (ServiceBusMessageBatch, Iterable))


def members(message: Any) -> list[Any]:
    """The messages of what was given to be sent, one by one; the caller's own objects, where `unshared` made copies."""
    if type(message) is ServiceBusMessage:  # what most calls are
        return [getattr(message, _ORIGINAL, message)]
    if isinstance(message, Prepared):
        return message.members()
    return [getattr(each, _ORIGINAL, each) for each in single_messages(message)]


def single_messages(message: Any) -> list[Any]:
    """What the SDK is given to be sent, one by one."""
    if isinstance(message, ServiceBusMessageBatch):
        return list(message._messages)
    return list(message) if is_many(message) else [message]


def unshared(message: Any) -> Any:
    """The message, or a copy where the SDK would change it: it decodes bytes in application properties in place, and
    a tracer writes there.

    A dictionary becomes a message, so that it has one id wherever it ends up.
    """
    properties: Any
    twin: Any
    if isinstance(message, Mapping):
        return _from_mapping(message)
    properties = getattr(message, "application_properties", None)
    if not properties or not hasattr(properties, "values"):
        return message  # none, or no mapping: the SDK says what is wrong with that
    if not (_has_bytes(properties) or is_tracing_enabled()):  # type: ignore[no-untyped-call]
        return message
    twin = copy.copy(message)
    if isinstance(twin, ServiceBusMessage):
        twin._raw_amqp_message = copy.copy(message._raw_amqp_message)
    twin.application_properties = dict(properties)
    setattr(twin, _ORIGINAL, message)
    return twin


def _from_mapping(message: Mapping[str, Any]) -> Any:
    """What the SDK makes of a dictionary, made once: it would give it another message id each time."""
    properties = message.get("application_properties")
    try:
        twin = ServiceBusMessage(
            **{**message, "application_properties": dict(properties) if properties else properties}
        )
    except (TypeError, ValueError):
        return message  # the SDK says what is wrong with it
    setattr(twin, _ORIGINAL, message)
    return twin


def _has_bytes(properties: Any) -> bool:
    return any(isinstance(value, bytes) for value in properties.values())


def billed(message: Any) -> int:
    """How many operations a send is billed as: by the bodies' sizes, which are at hand without encoding anything."""
    if isinstance(message, ServiceBusMessage):
        message = message._raw_amqp_message
    if isinstance(message, AmqpAnnotatedMessage):
        body: Any = message._data_body
        if not body:
            return 1
        size = len(body[0]) if len(body) == 1 else sum(map(len, body))
        return 1 if size <= UNIT else operations_of(size)  # nearly always 1
    if isinstance(message, ServiceBusMessageBatch):
        return sum(operations_of(len(each)) for each in message._message[5])
    if isinstance(message, Prepared):
        return message.billed()
    return sum(map(billed, message)) if is_many(message) else 1


#: What a tracer is told about where a message goes.
Destination = dict[str, Any]


def destination(host: str, path: str) -> Destination:
    """A message's destination, as the SDK tells a tracer."""
    return {
        TraceAttributes.TRACE_NET_PEER_NAME_ATTRIBUTE: host,
        TraceAttributes.TRACE_MESSAGING_DESTINATION_ATTRIBUTE: path,
    }


def encoded(message: Any, traced: Destination | None = None) -> bytes:
    """A single message, as the SDK would put it on the wire. Raises what the SDK's encoder raises.

    With `traced` a tracer, if there is one, hears of it, and the message carries its trace.
    """
    return bytes(PyamqpTransport.encode_message(_outgoing(message, traced)))


def _outgoing(message: Any, traced: Destination | None) -> Any:
    made: Any
    (made,) = transform_outbound_messages(  # type: ignore[misc]
        [unshared(message)], ServiceBusMessage, PyamqpTransport.to_outgoing_amqp_message
    )
    if traced is not None and is_tracing_enabled():  # type: ignore[no-untyped-call]
        made._message = trace_message(made._message, PyamqpTransport, traced)  # type: ignore[arg-type]
    return made


def encoded_members(message: Any, traced: Destination | None = None) -> list[bytes]:
    """All messages of what was given to be sent, encoded. Raises what the SDK's sender raises for it.

    `traced` as in `encoded`; a batch was traced when it was filled.
    """
    if type(message) is not ServiceBusMessage:
        if isinstance(message, ServiceBusMessageBatch):
            return [bytes(each) for each in message._message[5]]
        if isinstance(message, Prepared):
            return message.encoded()
        if is_many(message):
            return [encoded(each, traced) for each in message]
    outgoing = _outgoing(message, traced)
    try:
        return [bytes(PyamqpTransport.encode_message(outgoing))]
    except Exception as error:  # where the SDK sends a single message, it gives its own class to this
        raise ServiceBusError(message=f"Handler failed: {error}.", error=error) from error


def raw_batch(messages: Sequence[bytes], objects: Sequence[Any] = ()) -> ServiceBusMessageBatch:
    """Encoded messages as a batch that the SDK's sender sends as they are.

    Where they go to where they were meant to, `objects` are what they were encoded from: as in the SDK's own batches,
    the first one tells the id, the session and the partition key of the whole.
    """
    batch = _RawBatch(messages)
    # A tracer stumbles over other objects.
    batch._messages = [each for each in objects if isinstance(each, ServiceBusMessage)]
    if objects:
        first = objects[0]
        if isinstance(first, AmqpAnnotatedMessage):
            first = ServiceBusMessage(None, message=first, raw_amqp_message=first)
        PyamqpTransport.set_batch_envelope_properties(
            batch._message, first.message_id, first.session_id, first.partition_key
        )
    return batch


class _RawBatch(ServiceBusMessageBatch):
    """A batch that was filled elsewhere: it does not reckon sizes, which is most of what the SDK makes one for."""

    def __init__(self, messages: Sequence[bytes]) -> None:
        self._amqp_transport = PyamqpTransport
        self._tracing_attributes = {}
        self._max_size_in_bytes = 2**31
        self._message = PyamqpTransport.build_batch_message(list(messages))
        self._size = 0
        self._count = len(messages)
        self._messages = []
        self._uamqp_message = None


def empty_batch(limit: int, traced: Destination | None = None) -> ServiceBusMessageBatch:
    """A batch for a caller to fill, when the primary cannot be asked for its limit."""
    return ServiceBusMessageBatch(max_size_in_bytes=limit, tracing_attributes=traced or {})


def again(error: Exception) -> Exception:
    """The same error, to be raised once more for somebody else."""
    try:
        twin: Exception = type(error)(message=str(error))  # type: ignore[call-arg]
    except Exception:
        try:
            twin = copy.copy(error)
        except Exception:
            return error  # a class that cannot be made from what it holds: then all callers share it
    for name in ("_condition", "_status_code", "inner_exception", "status_code"):
        if hasattr(error, name):
            setattr(twin, name, getattr(error, name))
    twin.__cause__ = error.__cause__
    return twin
