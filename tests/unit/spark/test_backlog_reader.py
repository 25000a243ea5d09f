"""The reader of the streaming source, without a session and without a service."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pairbus.config import NamespaceReference, SyphonConfig
from pairbus.spark.source import BacklogReader


def test_a_primary_that_cannot_be_resolved_now_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its secret may be there at the next trigger: the old tick is returned, and the query goes on."""
    config = SyphonConfig(
        primary=NamespaceReference(connection=f"file:{tmp_path / 'not-there-yet'}"),
        secondary=NamespaceReference(connection="env:SECONDARY"),
    )
    reader = BacklogReader(config)
    with caplog.at_level(logging.WARNING, "pairbus.syphon"):
        assert reader.latestOffset({"tick": 3}) == {"tick": 3}
    assert "[primary] cannot be resolved" in caplog.text
    assert "next attempt at the next trigger" in caplog.text
