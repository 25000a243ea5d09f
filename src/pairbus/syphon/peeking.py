"""Sequence numbers of the messages in the backlog queues, peeked without taking any."""

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
from .depths import DepthQuery, none_exists_text

#: Messages that one request asks for; the service answers with fewer if they are large.
_PAGE = 1000
_PEEK = {"operation": "com.microsoft:peek-message"}
#: Failures in a row after which peeking fails: one connection may be lost.
_FAILURES = 2


def backlog_sequence_numbers(
    secondary: Namespace, primary_name: str, indexes: Iterable[int] | None = None, *, timeout: float = 30.0
) -> dict[int, list[int]]:
    """Return the sequence numbers of all messages in the backlog queues, locked ones included.

    Peeking takes no message, and is billed like receiving.

    Parameters
    ----------
    secondary
        The namespace that holds the backlog.
    primary_name
        Name of the primary, which is part of the queues' paths.
    indexes
        The queues to peek at; by default all backlog queues of that primary.
    timeout
        Seconds that the secondary may take for each answer.

    Returns
    -------
    dict
        Queue index -> sequence numbers, in order. A queue that does not exist has none.

    Raises
    ------
    PairbusError
        If none of the queues exists, because a name is wrong, or if a queue cannot be peeked at.
    Exception
        The SDK's own, if the secondary does not answer.
    """
    depths = DepthQuery(primary_name, indexes).run(secondary, timeout)
    if depths.none_exists:
        raise PairbusError(none_exists_text(depths, secondary, primary_name))
    paths = {index: queue_path(primary_name, index) for index, depth in depths.by_index.items() if depth is not None}
    with ThreadPoolExecutor(1, "pairbus-peek") as thread:  # the caller's may have an event loop, as in a notebook
        found = thread.submit(lambda: asyncio.run(_peek_queues(secondary, paths, timeout))).result()
    return {index: found.get(index, []) for index in depths.by_index}


async def _peek_queues(secondary: Namespace, paths: dict[int, str], timeout: float) -> dict[int, list[int]]:
    """Return queue index -> sequence numbers; a connection that is lost is opened again."""
    found: dict[int, list[int]] = {index: [] for index in paths}
    left = list(paths)
    failures = 0
    while left:
        index = left[0]
        try:
            async with contextlib.AsyncExitStack() as cleanup:
                connection = await Connection.open(secondary, timeout=timeout)
                cleanup.push_async_callback(connection.close)
                while left:
                    index = left[0]
                    await _peek(connection, paths[index], found[index], timeout)
                    left.pop(0)
                    failures = 0
        except LinkError as error:
            failures += 1
            if error.condition == "amqp:not-found":  # deleted since the depth query
                left.pop(0)
            elif failures >= _FAILURES:
                raise PairbusError(f"{secondary.host}: {paths[index]} could not be peeked at: {error}") from error
    return found


async def _peek(connection: Connection, path: str, found: list[int], timeout: float) -> None:
    """Add the sequence numbers of all messages after those that were found."""
    await connection.authorize(path, timeout=timeout)
    requests = RequestClient(connection, f"{path}/$management")
    while True:
        first = max(found, default=0) + 1
        wanted = {"from-sequence-number": Long(first), "message-count": _PAGE}
        try:
            answer = await requests.request(_PEEK, wanted, path, timeout)
        except LinkError as error:
            if error.condition == "com.microsoft:message-not-found":
                return
            raise
        page = [_sequence_number(each, path) for each in _messages(answer, path)]
        if not page:
            return
        if min(page) < first:
            raise PairbusError(f"{path}: a peek from {first} on was answered with {min(page)}")
        found += page


def _messages(body: Any, path: str) -> list[Any]:
    listed = body.get("messages") if isinstance(body, dict) else None
    if listed is None:  # no message follows
        return []
    if not isinstance(listed, list):
        raise PairbusError(f"{path}: a peek was answered with a {type(listed).__name__} of messages")
    return listed


def _sequence_number(each: Any, path: str) -> int:
    """Return a peeked message's sequence number. Nothing else is decoded, because other values may be invalid."""
    message = each.get("message") if isinstance(each, dict) else None
    number = facts(message).sequence_number if isinstance(message, bytes) else None
    if number is None:
        raise PairbusError(f"{path}: a peek was answered with a message that has no sequence number")
    return number
