"""The HTTP resource that sets and clears faults, and the connections and links that a fault ends at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from pairbus.localbus.addresses import locate
from pairbus.localbus.amqp.connection import AmqpConnection
from pairbus.localbus.broker.broker import Broker
from pairbus.localbus.bus_errors import BusError
from pairbus.localbus.rest.http import Request, Response

from .faults import Fault, FaultError, Faults, covers, is_drop_now

FAULTS_PATH = "$localbus/faults"
#: A timed fault is ended a little after its time, so that its end has surely passed by then.
_MARGIN_SECONDS = 0.01

CallLater = Callable[[float, Callable[[], None]], object]


class FaultControl:
    """The handler of the HTTP resource; it applies a new fault to open links and connections too."""

    def __init__(
        self,
        faults: Faults,
        broker: Broker,
        connections: Iterable[AmqpConnection],
        schedule: Callable[[], None],
        call_later: CallLater,
    ) -> None:
        self._faults = faults
        self._broker = broker
        self._connections = connections
        self._schedule = schedule
        self._call_later = call_later

    async def handle(self, request: Request) -> Response:
        """Answer GET (list the faults), POST (set one, as JSON) and DELETE (`?id=` ends one; without it, all)."""
        if request.method == "GET":
            return _json(200, self._faults.listed())
        if request.method == "DELETE":
            return self._clear(request)
        if request.method != "POST":
            return _json(405, {"error": f"{request.method} is not supported here; use GET, POST or DELETE"})
        try:
            description = json.loads(request.body)
            if not isinstance(description, dict):
                raise FaultError("a fault is a JSON object")
            fault = self._faults.read(description)
            if fault.entity != "*":
                fault.entity = self._path_of(fault.entity)
        except ValueError as error:
            return _json(400, {"error": str(error)})
        if is_drop_now(fault.kind, fault.parameters):
            return _json(200, {"id": fault.id, "dropped": self._drop_connections(fault.entity)})
        self._set(fault)
        return _json(201, fault.describe())

    def _clear(self, request: Request) -> Response:
        if "id" not in request.query:
            self._faults.clear()
            self._recover()
            return _json(200, [])
        if not request.query["id"].isdecimal():
            return _json(400, {"error": f"id must be a number, not {request.query['id']!r}"})
        self._faults.remove(int(request.query["id"]))  # a fault that has ended already is not an error
        self._recover()
        return _json(200, self._faults.listed())

    def _set(self, fault: Fault) -> None:
        self._faults.add(fault)
        if fault.until is not None:
            self._call_later(max(fault.until - self._broker.clock(), 0.0) + _MARGIN_SECONDS, self._recover)
        if fault.kind == "unavailable":
            self._detach_unavailable(fault.entity)

    def _path_of(self, entity: str) -> str:
        """Return the path that faults know an entity by; raise `FaultError` if no fault could apply to it."""
        address = locate(entity, self._broker)
        try:
            self._broker.find(address)
        except BusError:
            raise FaultError(f"there is no entity '{entity}' to set a fault on; create it first, or use '*'") from None
        if address.management or address.is_part_of_hub:
            raise FaultError(
                f"a fault applies to an entity as a whole: set it on '{address.full_path}', not on '{entity}'"
            )
        return address.full_path.lower()

    def _drop_connections(self, entity: str) -> int:
        """Cut every connection that has a link to an entity (or all); return the number of connections."""
        entity = entity.lower()
        dropped = 0
        for connection in list(self._connections):
            if entity == "*" or any(covers(entity, handler.path) for handler in connection.handlers()):
                connection.drop()
                dropped += 1
        return dropped

    def _detach_unavailable(self, entity: str) -> None:
        for handler in [each for connection in self._connections for each in connection.handlers()]:
            if handler.right is not None and (entity == "*" or covers(entity, handler.path)):
                error = self._faults.on_attach(handler.path)
                if error is not None:
                    handler.detach(error)

    def _recover(self) -> None:
        for connection in list(self._connections):
            connection.recover()
        self._schedule()


def _json(status: int, body: Any) -> Response:
    return Response(status, json.dumps(body).encode(), {"content-type": "application/json"})
