"""HTTP/1.1 for the management API: h11's state machine, with limits on sizes and times, one request at a time."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import cast
from urllib.parse import parse_qsl, unquote
from xml.sax.saxutils import escape

import h11

logger = logging.getLogger("pairbus.localbus.http")

#: Management requests have a few kilobytes.
MAX_BODY_BYTES = 1024 * 1024
MAX_HEADER_BYTES = 64 * 1024
_MAX_QUERY_FIELDS = 64

XML = "application/xml; charset=utf-8"


@dataclass(frozen=True)
class Request:
    """A complete request: `path` is decoded, without its first slash; `query` and `headers` have lower-case keys."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str] = field(repr=False)  # Authorization is among them
    body: bytes = field(repr=False)
    target: str


@dataclass
class Response:
    """The response to a request, without the headers that the protocol adds (length, date, connection)."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    reason: str = ""


Handler = Callable[[Request], Awaitable[Response]]
#: Returns the protocol that a request switches to, None for plain HTTP; raises ValueError for an invalid upgrade.
Upgrade = Callable[[Request], asyncio.Protocol | None]


def error_response(status: int, detail: str) -> Response:
    body = f"<Error><Code>{status}</Code><Detail>{escape(detail)}</Detail></Error>"
    return Response(status, body.encode(), {"Content-Type": XML})


def read_target(target: str) -> tuple[str, dict[str, str]]:
    """Return the decoded path and the query of a request target; raise ValueError if its escapes are not UTF-8."""
    rest = target.partition("#")[0]
    if rest.lower().startswith(("http://", "https://")):
        rest = "/" + rest.partition("//")[2].partition("/")[2]
    path, _, query = rest.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=_MAX_QUERY_FIELDS, errors="strict")
    return unquote(path.removeprefix("/"), errors="strict"), {key.lower(): value for key, value in pairs}


def _announced_length(event: h11.Request) -> int:
    return next((int(value) for name, value in event.headers if name == b"content-length"), 0)


def _head_size(event: h11.Request) -> int:
    return len(event.target) + sum(len(name) + len(value) for name, value in event.headers)


def _assemble(event: h11.Request, body: bytes) -> Request:
    headers: dict[str, str] = {}
    for raw_name, raw_value in event.headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    target = event.target.decode("ascii")
    path, query = read_target(target)
    return Request(event.method.decode("ascii"), path, query, headers, body, target)


class HttpProtocol(asyncio.Protocol):
    """One connection; a request whose handler has begun is finished even if its client disconnects."""

    def __init__(
        self,
        handle: Handler,
        *,
        upgrade: Upgrade = lambda request: None,
        idle_timeout: float = 120.0,
        request_timeout: float = 30.0,
        linger: float = 2.0,
        max_body: int = MAX_BODY_BYTES,
    ) -> None:
        self._handle = handle
        self._upgrade = upgrade
        self._idle_timeout = idle_timeout
        self._request_timeout = request_timeout
        # Reading on for a while: closing at once would reset the socket, and the client would lose the response.
        self._linger = linger
        self._max_body = max_body
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER_BYTES)
        self._transport: asyncio.Transport | None = None
        self._head: h11.Request | None = None
        self._body = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_reason = ""
        self._writable = True
        self._reading = True
        self._done = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._set_timer("next request", self._idle_timeout, self._close)

    def data_received(self, data: bytes) -> None:
        if self._done or self._transport is None:
            return
        try:
            self._http.receive_data(data)
            self._advance()
        except Exception:
            self._abort_after_error()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._done = True
        self._cancel_timer()

    def pause_writing(self) -> None:
        self._writable = False
        self._set_timer("answer read", self._idle_timeout, self._abort)

    def resume_writing(self) -> None:
        self._writable = True
        self._cancel_timer()
        try:
            self._advance()
        except Exception:
            self._abort_after_error()

    def _advance(self) -> None:
        while self._task is None and self._writable and not self._done:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                self._refuse(error.error_status_hint, f"Bad Request. {error}.")
                return
            if event is h11.NEED_DATA:
                self._wait_for_more()
                return
            if isinstance(event, h11.Request):
                self._head = event
                self._body.clear()
                if event.http_version not in (b"1.0", b"1.1"):
                    self._refuse(505, "This server supports HTTP 1.0 and 1.1.")
                elif _head_size(event) > MAX_HEADER_BYTES:  # h11 bounds only what is incomplete
                    self._refuse(431, f"The request's headers are larger than {MAX_HEADER_BYTES} bytes.")
                elif _announced_length(event) > self._max_body:
                    self._refuse(413, f"The request body is larger than {self._max_body} bytes.")
            elif isinstance(event, h11.Data):
                self._body += event.data
                if len(self._body) > self._max_body:
                    self._refuse(413, f"The request body is larger than {self._max_body} bytes.")
            elif isinstance(event, h11.EndOfMessage):
                self._begin_request()
            else:  # the client has closed the connection, or wants a protocol that is not supported
                self._close()
                return

    def _wait_for_more(self) -> None:
        if self._http.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
            self._write(self._http.send(go_on))
        if self._head is None and not self._http.trailing_data[0]:
            self._set_timer("next request", self._idle_timeout, self._close)
        elif self._timer_reason != "rest of request":  # one deadline for the whole request
            self._set_timer("rest of request", self._request_timeout, self._on_request_timeout)

    def _begin_request(self) -> None:
        event, self._head = self._head, None
        if event is None:
            return
        self._cancel_timer()
        try:
            request = _assemble(event, bytes(self._body))
            successor = self._upgrade(request)
        except ValueError as error:
            self._refuse(400, f"Bad Request. {error}.")
            return
        finally:
            self._body.clear()
        if successor is not None:
            self._hand_over(successor)
            return
        self._set_reading(False)
        self._task = asyncio.get_running_loop().create_task(self._handle_request(request))

    def _hand_over(self, successor: asyncio.Protocol) -> None:
        """Switch to another protocol, and give it the bytes that were received for it."""
        transport, self._transport = self._transport, None
        self._done = True
        if transport is None:
            return
        transport.set_protocol(successor)
        successor.connection_made(transport)
        if early := self._http.trailing_data[0]:
            successor.data_received(early)

    async def _handle_request(self, request: Request) -> None:
        try:
            response = await self._handle(request)
        except Exception:
            tracking_id = uuid.uuid4().hex
            logger.exception(
                "management request %s %s failed with an internal error; its TrackingId is %s",
                request.method,
                request.path,
                tracking_id,
            )
            response = error_response(500, f"The server was unable to process the request. TrackingId:{tracking_id}")
        finally:
            self._task = None
        if self._done or self._transport is None:
            return
        try:
            self._respond(response, bodiless=request.method == "HEAD")
            if h11.MUST_CLOSE in (self._http.our_state, self._http.their_state):
                self._close()
                return
            self._http.start_next_cycle()
            self._set_reading(True)
            self._advance()
        except Exception:
            self._abort_after_error()

    def _respond(self, response: Response, *, bodiless: bool = False, last: bool = False) -> None:
        headers = {"Content-Type": XML} if response.body else {}
        headers |= response.headers
        headers |= {"Content-Length": str(len(response.body)), "Date": formatdate(usegmt=True)}
        if last:
            headers["Connection"] = "close"
        reason = (response.reason or _phrase(response.status)).encode("ascii")
        head = h11.Response(status_code=response.status, headers=list(headers.items()), reason=reason)
        parts = [self._http.send(head)]
        if response.body and not bodiless:
            parts.append(self._http.send(h11.Data(data=response.body)))
        parts.append(self._http.send(h11.EndOfMessage()))
        self._write(b"".join(part for part in parts if part))

    def _refuse(self, status: int, detail: str) -> None:
        """Send an error response if HTTP still allows one; handle no more requests."""
        self._head = None
        self._body.clear()
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._respond(error_response(status, detail), last=True)
        self._done = True
        self._set_reading(True)
        self._set_timer("end of client", self._linger, self._close)

    def _on_request_timeout(self) -> None:
        try:
            self._refuse(408, "The request was not complete in time.")
        except Exception:
            self._abort_after_error()

    def _write(self, data: bytes | None) -> None:
        if data and self._transport is not None:
            self._transport.write(data)

    def _set_reading(self, enabled: bool) -> None:
        if self._transport is None or enabled == self._reading or self._transport.is_closing():
            return
        self._reading = enabled
        if enabled:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _set_timer(self, reason: str, seconds: float, then: Callable[[], None]) -> None:
        self._cancel_timer()
        self._timer_reason = reason
        self._timer = asyncio.get_running_loop().call_later(seconds, then)

    def _cancel_timer(self) -> None:
        self._timer_reason = ""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self) -> None:
        """Close the socket after the buffered output; abort it if the client does not read in time."""
        self._done = True
        if self._transport is not None:
            self._transport.close()
            self._set_timer("last bytes", self._request_timeout, self._abort)

    def _abort(self) -> None:
        self._done = True
        if self._transport is not None:
            self._transport.abort()

    def _abort_after_error(self) -> None:
        logger.exception("a management connection failed in the HTTP protocol; it is dropped")
        self._abort()


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
