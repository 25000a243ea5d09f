"""Which messages lie in the backlog queues, seen without taking any."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pairbus.domain.amqp.codec import Long
from pairbus.domain.backlog import queue_path
from pairbus.domain.envelope import facts
from pairbus.errors import PairbusError
from pairbus.options import Namespace

from .amqp.connection import Connection
from .amqp.link import LinkError
from .amqp.request_response import RequestClient
from .depths import backlog_depths, none_exists_text

#: As many as one peek may ask for; the service answers with fewer if they are large.
_AT_ONCE = 1000
_PEEK = {"operation": "com.microsoft:peek-message"}
#: How often a queue is tried: a connection may be lost.
_TRIES = 2


def backlog_sequence_numbers(
    secondary: Namespace, primary_name: str, indexes: Iterable[int] | None = None, *, timeout: float = 30.0
) -> dict[int, list[int]]:
    """Queue index → the sequence numbers of all messages that are in the queue, those that somebody has locked
    included; of all backlog queues of that primary, unless indexes are given.

    A queue that does not exist has none; if not one exists it raises `PairbusError`: then a name is wrong. It raises
    that, too, if a queue cannot be looked at, and what the SDK raises if the secondary does not answer. Peeking is
    billed like receiving.
    """
    depths = backlog_depths(secondary, primary_name, indexes, timeout)
    if depths.none_exists:
        raise PairbusError(none_exists_text(depths, secondary, primary_name))
    paths = {index: queue_path(primary_name, index) for index, depth in depths.by_index.items() if depth is not None}
    with ThreadPoolExecutor(1, "pairbus-peek") as own:  # a notebook has a loop in its own thread
        found = own.submit(lambda: asyncio.run(_all_peeked(secondary, paths, timeout))).result()
    return {index: found.get(index, []) for index in depths.by_index}


async def _all_peeked(secondary: Namespace, paths: dict[int, str], timeout: float) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {index: [] for index in paths}
    left = list(paths)
    failures = 0
    while left:
        index = left[0]
        try:
            async with contextlib.AsyncExitStack() as farewell:
                connection = await Connection.open(secondary, timeout=timeout)
                farewell.push_async_callback(connection.close)
                while left:
                    index = left[0]
                    await _peek(connection, paths[index], found[index], timeout)
                    left.pop(0)
                    failures = 0
        except LinkError as error:
            failures += 1
            if error.condition == "amqp:not-found":  # it was there a moment ago
                left.pop(0)
            elif failures >= _TRIES:
                raise PairbusError(f"{secondary.host}: {paths[index]} could not be peeked at: {error}") from error
    return found


async def _peek(connection: Connection, path: str, found: list[int], timeout: float) -> None:
    """Add the numbers of all messages behind those that were found."""
    await connection.authorize(path, timeout=timeout)
    requests = RequestClient(connection, f"{path}/$management")
    while True:
        first = max(found, default=0) + 1
        wanted = {"from-sequence-number": Long(first), "message-count": _AT_ONCE}
        try:
            answer = await requests.request(_PEEK, wanted, path, timeout)
        except LinkError as error:
            if error.condition == "com.microsoft:message-not-found":
                return
            raise
        page = [_number(each, path) for each in _messages(answer, path)]
        if not page:
            return
        if min(page) < first:
            raise PairbusError(f"{path}: a peek from {first} on was answered with {min(page)}")
        found += page


def _messages(body: Any, path: str) -> list[Any]:
    listed = body.get("messages") if isinstance(body, dict) else None
    if listed is None:  # none are left
        return []
    if not isinstance(listed, list):
        raise PairbusError(f"{path}: a peek was answered with a {type(listed).__name__} of messages")
    return listed


def _number(each: Any, path: str) -> int:
    """The sequence number of a peeked message. Nothing else of it is decoded: it may hold what few clients can read."""
    message = each.get("message") if isinstance(each, dict) else None
    number = facts(message).sequence_number if isinstance(message, bytes) else None
    if number is None:
        raise PairbusError(f"{path}: a peek was answered with a message that has no sequence number")
    return number
