"""In which order the files are taken: the longest first, so that at the end nobody waits for one of them."""

from __future__ import annotations

from pathlib import Path

import pytest

_HERE = Path(__file__).parent
#: They start Spark, or whole stories, and take minutes; the others take seconds.
_LONG = (
    "spark/test_job.py",
    "spark/test_ledger.py",
    "test_demo.py",
    "spark/test_drain_job.py",
    "spark/test_notebook.py",
    "spark/test_testing_guide.py",
    "sending/test_outages.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {_HERE / name: rank for rank, name in enumerate(_LONG)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))
