"""How deep each backlog queue is: one management call tells it for all of them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pairbus.domain.backlog import PROPERTIES, format_indexes, queue_path
from pairbus.options import Namespace
from pairbus.runtime.administration import administration_client, list_queues

log = logging.getLogger("pairbus.syphon")


@dataclass(frozen=True, slots=True)
class Depths:
    """How many messages lay in each backlog queue when it was asked."""

    #: Queue index → active messages, those that somebody has locked included; None: there is no such queue.
    by_index: Mapping[int, int | None]
    #: The billable operations that asking took.
    operations: int = 1
    #: The depths of other backlog queues of that primary, as far as they were seen.
    others: Mapping[int, int] = field(default_factory=dict)
    #: Queues that somebody else has made: index → how often a message of it is given out, less than for ever.
    given_out: Mapping[int, int] = field(default_factory=dict)

    @property
    def missing(self) -> tuple[int, ...]:
        """The queues that do not exist."""
        return tuple(index for index, depth in self.by_index.items() if depth is None)

    @property
    def left_out(self) -> dict[int, int]:
        """The queues with messages that were not asked for."""
        return {index: depth for index, depth in sorted(self.others.items()) if depth}

    @property
    def none_exists(self) -> bool:
        """Whether not one of the queues is there."""
        return all(depth is None for depth in self.by_index.values())

    @property
    def total(self) -> int:
        """All messages of all queues."""
        return sum(depth or 0 for depth in self.by_index.values())


def none_exists_text(depths: Depths, secondary: Namespace, primary_name: str) -> str:
    """What to say when not one of the wanted queues is there: an empty backlog is something else."""
    if depths.others:
        asked, found = format_indexes(sorted(depths.by_index)), format_indexes(sorted(depths.others))
        return f"{secondary.host} has no backlog queue {asked} of {primary_name}: there are {found}"
    return (
        f"{secondary.host} has no backlog queue {queue_path(primary_name, 0)}, nor any other of {primary_name}. Is "
        "that the name of the primary that the senders use? They make the queues when they first pair the namespaces"
    )


def left_out_text(left_out: Mapping[int, int], primary_name: str) -> str:
    """What to say of messages in queues that this syphon was not told of."""
    told = ", ".join(f"{index} ({depth:,} messages)" for index, depth in sorted(left_out.items()))
    return f"[syphon] queues leaves out backlog queues of {primary_name} that are not empty: {told}"


def warn_of_wear(depths: Depths, primary_name: str) -> None:
    """Say which queues give a message out only so often, if any."""
    for times in sorted(set(depths.given_out.values())):
        those = format_indexes([index for index, count in depths.given_out.items() if count == times])
        log.warning(
            "backlog queue %s of %s has max_delivery_count=%d: a message that is held back is given out again with "
            "each try, and after so many the service dead-letters it by itself, without a row in the ledger; pairbus "
            "makes its queues with %d",
            those, primary_name, times, _FOR_EVER,
        )  # fmt: skip


def warn_of(depths: Depths, secondary: Namespace, primary_name: str) -> None:
    """Say which queues are not there, were forgotten, or are not as they should be, if any."""
    if depths.none_exists:
        log.warning("%s", none_exists_text(depths, secondary, primary_name))
    elif depths.missing:
        log.warning("%s has no backlog queue %s of %s", secondary.host, format_indexes(depths.missing), primary_name)
    warn_of_wear(depths, primary_name)
    if depths.left_out:
        log.warning("%s", left_out_text(depths.left_out, primary_name))


_FOR_EVER: int = PROPERTIES["max_delivery_count"]
#: As many queues as a page has at the most; how many of them are read twice.
_PAGE, _OVERLAP = 100, 5
#: Where in the list of a secondary's queues those of a primary begin, as it was last time.
_begins: dict[tuple[str, str], int] = {}


def backlog_depths(
    secondary: Namespace, primary_name: str, indexes: Iterable[int] | None, timeout: float = 10.0
) -> Depths:
    """The depths of these backlog queues of a primary (None: of all), from the list of the secondary's queues.

    The list comes in pages of 100, each a billable operation. It is read from where the wanted queues began the last
    time, and no page is asked for once all of them were seen: beside whatever else the namespace has, that is one page.
    Raises what the SDK raises when the secondary does not answer.
    """
    wanted = {queue_path(primary_name, index).lower(): index for index in indexes or ()}
    found: dict[int, int | None] = dict.fromkeys(sorted(wanted.values()))
    others: dict[int, int] = {}
    given_out: dict[int, int] = {}
    prefix = queue_path(primary_name, 0).lower().removesuffix("0")
    begins = _begins.get((secondary.host, primary_name), 0) if indexes is not None else 0
    pages, first = 0, None
    with administration_client(secondary, timeout) as client:
        for start, end in ((begins, None), (0, begins)):
            at, is_last = start, False
            while (wanted or indexes is None) and (end is None or at < end) and not is_last:
                # Pages go by position: should a queue be deleted meanwhile, the next one begins a little earlier.
                at -= _OVERLAP if at > start else 0
                page = list_queues(client, at)
                pages, is_last = pages + 1, len(page) < _PAGE
                for queue in page:
                    name, depth = queue.name.lower(), queue.active_messages
                    if (index := wanted.pop(name, None)) is not None:
                        found[index] = depth
                        if (times := queue.max_delivery_count or _FOR_EVER) < _FOR_EVER:
                            given_out[index] = times
                        first = at if first is None else min(first, at)
                    elif name.startswith(prefix) and (number := name.removeprefix(prefix)).isdecimal():
                        others[int(number)] = depth
                    at += 1
    if indexes is None:
        return Depths(others, pages)
    _begins[secondary.host, primary_name] = first or 0
    others = {index: depth for index, depth in others.items() if index not in found}
    return Depths(found, pages, others, given_out)
