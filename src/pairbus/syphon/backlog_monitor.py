"""The backlog's depth over time: queries with a renewed credential, and the schedule that spaces them out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pairbus.runtime.backoff import Backoff
from pairbus.runtime.redaction import describe_error

if TYPE_CHECKING:
    from pairbus.options import Namespace

    from .depths import DepthQuery, Depths

log = logging.getLogger("pairbus.syphon")


class BacklogMonitor:
    """Depth queries for one backlog. After a failure the secondary is resolved anew: its key may be renewed."""

    def __init__(
        self,
        query: DepthQuery,
        resolve: Callable[[], Namespace],
        *,
        secondary: Namespace | None = None,
        on_query: Callable[[int], object] = lambda operations: None,
    ) -> None:
        self._query = query
        self._resolve = resolve
        self._secondary = secondary
        self._on_query = on_query
        self.last: Depths | None = None

    def secondary(self) -> Namespace:
        """Return the secondary of the last query that was answered, or else resolve it."""
        if self._secondary is None:
            self._secondary = self._resolve()
        return self._secondary

    @property
    def primary_name(self) -> str:
        """The primary whose backlog is queried."""
        return self._query.primary_name

    def renew(self) -> None:
        self._secondary = None

    def change_query(self, query: DepthQuery) -> None:
        """Query another backlog from now on: the references have come to name another primary."""
        self._query = query

    def query(self) -> Depths:
        """Return the depths of the backlog queues; raises what resolving or the SDK raises."""
        secondary = self.secondary()
        operations = 1
        try:
            depths = self._query.run(secondary)
            operations, self.last = depths.operations, depths
        except Exception:
            self.renew()
            raise
        finally:
            self._on_query(operations)
        return depths

    def query_or_warn(self, next_step: str) -> Depths | None:
        """Return the depths; None after a failure, which is logged together with the next step."""
        try:
            return self.query()
        except Exception as error:  # credentials, the SDK and the network raise many kinds
            log.warning("%s; %s", self.failure(error), next_step)
            return None

    def failure(self, error: Exception) -> str:
        """Describe a query that failed, without secrets."""
        return f"backlog depth unavailable for {self._query.primary_name}: {describe_error(error)}"


@dataclass(slots=True)
class PollSchedule:
    """The time of the next depth query: at once while there is work, later while the backlog is empty or unknown."""

    #: Seconds between two queries of an empty backlog.
    idle_interval: float
    #: Pauses after queries that failed.
    backoff: Backoff
    failures: int = 0
    _next: float = 0.0

    def is_due(self, now: float) -> bool:
        """Return True if it is time to query, or if the clock was set back by more than any pause."""
        return not now < self._next <= now + max(self.idle_interval, self.backoff.longest)

    def make_due(self) -> None:
        self._next = 0.0

    def pause_after_failure(self) -> float:
        return self.backoff.pause(self.failures)

    def failed(self, at: float) -> None:
        self._next = at + self.pause_after_failure()
        self.failures += 1

    def answered(self, depths: Mapping[int, int | None], at: float) -> bool:
        """Record the depths that were valid at this time; return True if there are messages."""
        self.failures = 0
        has_messages = any(depths.values())
        self._next = 0.0 if has_messages else at + self.idle_interval
        return has_messages
