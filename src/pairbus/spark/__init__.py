"""The syphon on Spark: a streaming query that brings parked messages home, and a ledger of every one of them.

from pairbus.spark import syphon

query = syphon(spark, config).start()
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pairbus.syphon.peeking import backlog_sequence_numbers

    from .batch_summary import BatchSummary, SyphonError
    from .job import Syphon, syphon
    from .ledger import Ledger
    from .session import spark_session
    from .verification import Verification, verify

#: Where each public name lives. Imported when it is first asked for: Spark starts several processes for every query,
#: and they need little of it.
_HOMES = {
    "BatchSummary": "batch_summary",
    "Ledger": "ledger",
    "Syphon": "job",
    "SyphonError": "batch_summary",
    "Verification": "verification",
    "backlog_sequence_numbers": ".syphon.peeking",
    "spark_session": "session",
    "syphon": "job",
    "verify": "verification",
}

__all__ = [
    "BatchSummary",
    "Ledger",
    "Syphon",
    "SyphonError",
    "Verification",
    "backlog_sequence_numbers",
    "spark_session",
    "syphon",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
