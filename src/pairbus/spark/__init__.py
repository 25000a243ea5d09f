"""The syphon on Spark: a streaming query that delivers parked messages, and a ledger with the outcome of each.

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

#: Public name -> its module, imported on first use: each query starts several processes, which need few of them.
_MODULES = {
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
    "BatchSummary", "Ledger", "Syphon", "SyphonError", "Verification", "backlog_sequence_numbers", "spark_session",
    "syphon", "verify",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
