"""Depths of backlog queues: the number of messages in each, from one listing of the secondary's queues."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pairbus.domain.backlog import PROPERTIES, format_indexes, queue_path
from pairbus.options import Namespace
from pairbus.runtime.administration import ListedQueue, administration_client, list_queues

log = logging.getLogger("pairbus.syphon")

#: The max_delivery_count of queues that pairbus makes.
_UNLIMITED: int = PROPERTIES["max_delivery_count"]
#: Queues on a full page of the listing, and how many of them are read again with the next page.
_PAGE, _OVERLAP = 100, 5


@dataclass(frozen=True, slots=True)
class Depths:
    """The depth of each backlog queue at the time of a query."""

    #: Queue index -> active messages, locked ones included. None: the queue does not exist.
    by_index: Mapping[int, int | None]
    #: Billable operations of the query.
    operations: int = 1
    #: Queue index -> depth of the same primary's other backlog queues, as far as the query saw them.
    others: Mapping[int, int] = field(default_factory=dict)
    #: Queue index -> max_delivery_count, where it is below that of queues that pairbus makes.
    delivery_limits: Mapping[int, int] = field(default_factory=dict)

    @property
    def missing(self) -> tuple[int, ...]:
        return tuple(index for index, depth in self.by_index.items() if depth is None)

    @property
    def left_out(self) -> dict[int, int]:
        """Queue index -> depth of the queues with messages that the query did not ask for."""
        return {index: depth for index, depth in sorted(self.others.items()) if depth}

    @property
    def none_exists(self) -> bool:
        return all(depth is None for depth in self.by_index.values())

    @property
    def total(self) -> int:
        return sum(depth or 0 for depth in self.by_index.values())


class DepthQuery:
    """A query for the depths of one primary's backlog queues, to be run again and again.

    The service lists all queues of a namespace in pages of 100, each a billable operation. A run begins at the page
    where the last one found the first wanted queue, so from the second run on it reads one page.
    """

    def __init__(self, primary_name: str, indexes: Iterable[int] | None) -> None:
        self.primary_name = primary_name
        self._indexes = None if indexes is None else tuple(indexes)
        #: Position of the first wanted queue in the listing, as of the last run.
        self._start = 0

    def run(self, secondary: Namespace, timeout: float = 10.0) -> Depths:
        """Return the depths; raises what the SDK raises if the secondary does not answer within `timeout` seconds."""
        listing = _Listing(self.primary_name, self._indexes)
        with administration_client(secondary, timeout) as client:
            listing.read(client, self._start, None)
            listing.read(client, 0, self._start)
        if self._indexes is None:
            return Depths(listing.others, listing.pages)
        self._start = listing.first or 0
        return Depths(listing.found, listing.pages, listing.others, listing.delivery_limits)


class _Listing:
    """The pages that one run has read, and the depths found in them."""

    def __init__(self, primary_name: str, indexes: Iterable[int] | None) -> None:
        self._reads_all = indexes is None
        self._wanted = {queue_path(primary_name, index).lower(): index for index in indexes or ()}
        self._prefix = queue_path(primary_name, 0).lower().removesuffix("0")
        self.found: dict[int, int | None] = dict.fromkeys(sorted(self._wanted.values()))
        self.others: dict[int, int] = {}
        self.delivery_limits: dict[int, int] = {}
        self.pages = 0
        self.first: int | None = None

    def read(self, client: Any, start: int, end: int | None) -> None:
        """Read pages from a position on until all wanted queues were seen, `end` is reached or the listing ends."""
        position, is_last = start, False
        while (self._wanted or self._reads_all) and (end is None or position < end) and not is_last:
            # Pages go by position: if a queue was deleted meanwhile, the next page begins a little earlier.
            position -= _OVERLAP if position > start else 0
            page = list_queues(client, position)
            self.pages += 1
            is_last = len(page) < _PAGE
            for offset, queue in enumerate(page):
                self._add(queue, position + offset)
            position += len(page)

    def _add(self, queue: ListedQueue, position: int) -> None:
        name, depth = queue.name.lower(), queue.active_messages
        index = self._wanted.pop(name, None)
        if index is not None:
            self.found[index] = depth
            self.first = position if self.first is None else min(self.first, position)
            limit = queue.max_delivery_count or _UNLIMITED
            if limit < _UNLIMITED:
                self.delivery_limits[index] = limit
        elif (other := self._index_of(name)) is not None and other not in self.found:  # found: on a page read again
            self.others[other] = depth

    def _index_of(self, name: str) -> int | None:
        number = name.removeprefix(self._prefix)
        return int(number) if name.startswith(self._prefix) and number.isdecimal() else None


def none_exists_text(depths: Depths, secondary: Namespace, primary_name: str) -> str:
    """Return the error text for queues none of which exists: a wrong name, not an empty backlog."""
    if depths.others:
        wanted, found = format_indexes(sorted(depths.by_index)), format_indexes(sorted(depths.others))
        return f"{secondary.host} has no backlog queue {wanted} of {primary_name}: there are {found}"
    return (
        f"{secondary.host} has no backlog queue {queue_path(primary_name, 0)}, nor any other of {primary_name}. Is "
        "that the name of the primary that the senders use? They make the queues when they first pair the namespaces"
    )


def log_warnings(depths: Depths, secondary: Namespace, primary_name: str) -> None:
    """Log a warning for queues that are missing, limited in their deliveries, or left out though not empty."""
    if depths.none_exists:
        log.warning("%s", none_exists_text(depths, secondary, primary_name))
    elif depths.missing:
        log.warning("%s has no backlog queue %s of %s", secondary.host, format_indexes(depths.missing), primary_name)
    log_delivery_limits(depths, primary_name)
    if depths.left_out:
        queues = ", ".join(f"{index} ({depth:,} messages)" for index, depth in depths.left_out.items())
        log.warning("[syphon] queues leaves out backlog queues of %s that are not empty: %s", primary_name, queues)


def log_delivery_limits(depths: Depths, primary_name: str) -> None:
    """Log a warning for each max_delivery_count that is lower than that of queues that pairbus makes."""
    for limit in sorted(set(depths.delivery_limits.values())):
        queues = format_indexes([index for index, each in depths.delivery_limits.items() if each == limit])
        log.warning(
            "backlog queue %s of %s has max_delivery_count=%d: each retry of a held message is a delivery, and after "
            "%d deliveries the service dead-letters it without a row in the ledger; set it to %d, as pairbus does for "
            "queues that it makes",
            queues, primary_name, limit, limit, _UNLIMITED,
        )  # fmt: skip
