"""A client that sets and clears the faults of a running localbus, over its management API."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote_plus

from pairbus.localbus.errors import LocalBusError

from .faults import FaultError

#: Time limit of a request; it usually takes a few milliseconds.
ANSWER_SECONDS = 10.0


class FaultClient:
    """A client with one method for each kind of fault.

    Each takes `entity` (a path, by default all), `count` (occurrences until it ends) and `seconds` (until it ends), and
    returns the fault's id. A fault that localbus refuses raises `FaultError`, a localbus without an answer
    `LocalBusError`.
    """

    def __init__(self, host: str, port: int, connection_string: str, ca_file: str) -> None:
        self._host = host
        self._port = port
        self._secrets = connection_string
        self._ca_file = ca_file

    def __repr__(self) -> str:
        return f"<FaultClient {self._host}:{self._port}>"

    def unavailable(self, entity: str = "*", *, condition: str | None = None, **limits: Any) -> int:
        """Refuse new links and detach existing ones (default condition: amqp:internal-error)."""
        return self._set("unavailable", entity, {"condition": condition}, limits)

    def black_hole(self, entity: str = "*", **limits: Any) -> int:
        """Accept bytes and answer nothing."""
        return self._set("black-hole", entity, {}, limits)

    def drop(self, entity: str = "*", *, after: int = 0, **limits: Any) -> int:
        """Cut the connections of an entity now, or cut a connection after every `after` messages of the entity.

        Messages that a cut connection has sent are kept, but not acknowledged.
        """
        return self._set("drop", entity, {"after": after}, limits)

    def reject(
        self, condition: str, entity: str = "*", *, description: str | None = None, rate: float = 1.0, **limits: Any
    ) -> int:
        """Reject sends with a condition."""
        given = {"condition": condition, "description": description, "rate": rate}
        return self._set("reject", entity, given, limits)

    def busy(self, entity: str = "*", *, rate: float = 1.0, **limits: Any) -> int:
        """Throttle: refuse sends, attaches and requests with server-busy."""
        return self._set("busy", entity, {"rate": rate}, limits)

    def internal_error(self, entity: str = "*", *, rate: float = 1.0, **limits: Any) -> int:
        """Fail sends and requests with an internal error."""
        return self._set("internal-error", entity, {"rate": rate}, limits)

    def lock_lost(self, entity: str = "*", *, rate: float = 1.0, **limits: Any) -> int:
        """Refuse settlements because the lock is lost, and make the message available to other receivers."""
        return self._set("lock-lost", entity, {"rate": rate}, limits)

    def late_settle(self, delay: float, entity: str = "*", **limits: Any) -> int:
        """Apply settlements at once and answer them that many seconds later."""
        return self._set("late-settle", entity, {"delay": delay}, limits)

    def lost_settle(self, entity: str = "*", *, rate: float = 1.0, **limits: Any) -> int:
        """Apply settlements without an answer."""
        return self._set("lost-settle", entity, {"rate": rate}, limits)

    def lost_accept(self, entity: str = "*", *, rate: float = 1.0, **limits: Any) -> int:
        """Accept sent messages without an answer."""
        return self._set("lost-accept", entity, {"rate": rate}, limits)

    def latency(self, delay: float, entity: str = "*", **limits: Any) -> int:
        """Add that many seconds to each direction."""
        return self._set("latency", entity, {"delay": delay}, limits)

    def quota_exceeded(self, entity: str = "*", **limits: Any) -> int:
        """Refuse sends because the entity is full."""
        return self._set("quota", entity, {}, limits)

    def size_limit(self, limit: int, entity: str = "*", **limits: Any) -> int:
        """Refuse messages of more than that many bytes, on links that attach from now on."""
        return self._set("size-limit", entity, {"limit": limit}, limits)

    def clear(self, id: int | None = None) -> None:
        """End one fault, or all. A fault that has ended already is not an error."""
        self._request("DELETE", "" if id is None else f"?id={id}")

    def list(self) -> list[dict[str, Any]]:
        """Return the descriptions of the faults that have not ended."""
        found: list[dict[str, Any]] = self._request("GET", "")
        return found

    @contextmanager
    def during(self, kind: str, entity: str = "*", **parameters: Any) -> Iterator[int]:
        """Set a fault for the length of a with statement: `with bus.faults.during("busy", "orders"): ...`."""
        id = self._set(kind, entity, parameters, {})
        try:
            yield id
        except BaseException:
            with suppress(LocalBusError):  # the exception of the with block matters more
                self.clear(id)
            raise
        self.clear(id)

    def _set(self, kind: str, entity: str, parameters: dict[str, Any], limits: dict[str, Any]) -> int:
        given = {key: value for key, value in {**parameters, **limits}.items() if value is not None}
        found = self._request("POST", "", {"kind": kind, "entity": entity, **given})
        return int(found.get("id", 0))

    def _request(self, method: str, query: str, body: dict[str, Any] | None = None) -> Any:
        try:
            status, text = self._exchange(method, query, None if body is None else json.dumps(body))
        except (OSError, http.client.HTTPException) as error:  # ssl.SSLError is an OSError
            raise LocalBusError(self._no_answer(error)) from error
        if status >= 400:
            try:
                text = json.loads(text)["error"]
            except (ValueError, KeyError, TypeError):
                text = f"localbus answered {status}: {text}"
            raise FaultError(text)
        return json.loads(text)

    def _exchange(self, method: str, query: str, body: str | None) -> tuple[int, str]:
        context = ssl.create_default_context(cafile=self._ca_file)
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=ANSWER_SECONDS, context=context)
        try:
            connection.request(method, f"/$localbus/faults{query}", body, {"Authorization": self._token()})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def _no_answer(self, error: Exception) -> str:
        """Return the cause of a missing answer, and what to do."""
        where = f"localbus on {self._host}:{self._port}"
        if isinstance(error, TimeoutError):
            return f"{where} has not answered for {ANSWER_SECONDS:g} s: is it paused? Call resume(), or restart()."
        if isinstance(error, ConnectionRefusedError):
            return f"{where} is not running: it was stopped or killed, and its faults are gone. Call restart()."
        if isinstance(error, FileNotFoundError):
            return f"{where} was closed, its certificate {self._ca_file} is gone. Call start() to have it again."
        return f"{where} closed the connection without an answer ({error!r}): it may just have ended. Call restart()."

    def _token(self) -> str:
        parts = dict(part.partition("=")[::2] for part in self._secrets.split(";") if part)
        resource = quote_plus(f"https://{self._host}:{self._port}/")
        expiry = int(time.time()) + 300
        key = parts["SharedAccessKey"].encode()
        signature = base64.b64encode(hmac.new(key, f"{resource}\n{expiry}".encode(), hashlib.sha256).digest())
        return (
            f"SharedAccessSignature sr={resource}&sig={quote_plus(signature)}&se={expiry}"
            f"&skn={quote_plus(parts['SharedAccessKeyName'])}"
        )
