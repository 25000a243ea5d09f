"""One small local SparkSession for all Spark tests of a process, and two namespaces with a parked backlog."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from pyspark.sql import SparkSession

from pairbus.config.syphon_config import SyphonConfig
from pairbus.domain.backlog import queue_path
from pairbus.domain.outcome import Head, Outcome, Rows
from pairbus.spark.session import spark_session
from pairbus.syphon.journal.journal import open_journal
from tests.support.pairing import Pair
from tests.support.process_fixtures import administer

_SMALL = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    # Compiling a query takes longer than running it over a few rows. The demo, jobs and clusters keep the defaults.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.session.timeZone": "America/New_York",  # no result may depend on it
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session with Delta on two cores, which listens on the loopback address only."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = spark_session("pairbus-tests", **_SMALL)
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


class Backlog:
    """The backlog of a test: queues of the secondary, their messages, and a configuration."""

    def __init__(self, pair: Pair, folder: Path) -> None:
        self.pair = pair
        self.folder = folder
        self._secrets = folder / "secrets"
        self._secrets.mkdir()

    def config(self, *, queues: int | str = 2, **syphon: Any) -> SyphonConfig:
        """Return a configuration with references to files, because Spark's processes started before this test."""
        for name, bus in (("primary", self.pair.primary), ("secondary", self.pair.secondary)):
            (self._secrets / name).write_text(bus.connection_string)
        return SyphonConfig.from_mapping(self.mapping(queues=queues, **syphon))

    def mapping(self, *, queues: int | str = 2, **syphon: Any) -> dict[str, dict[str, Any]]:
        """Return the configuration's TOML form."""
        primary, secondary = self.pair.primary, self.pair.secondary
        return {
            "primary": self._reference("primary", self.pair.name, primary.ca_file),
            "secondary": self._reference("secondary", "backup", secondary.ca_file),
            "syphon": {"queues": queues, "task_budget": 5, **syphon},
            "ledger": {"path": str(self.folder / "ledger"), "checkpoint": str(self.folder / "checkpoint")},
        }

    def _reference(self, kind: str, name: str, ca_file: Any) -> dict[str, str]:
        reference = {"connection": f"file:{self._secrets / kind}", "name": name}
        return reference | ({"ca_file": str(ca_file)} if ca_file else {})

    def create(self, count: int = 2) -> None:
        """Create the backlog queues."""
        with administer(self.pair.secondary) as admin:
            for index in range(count):
                admin.create_queue(queue_path(self.pair.name, index))

    def park(self, destinations: Mapping[int, str], count: int) -> None:
        """Park so many messages in each queue, for its destination, as a sender would."""
        with self.pair.plain_client(self.pair.secondary) as client:
            for index, destination in destinations.items():
                with client.get_queue_sender(queue_path(self.pair.name, index)) as sender:
                    messages = [self._message(index, number, destination) for number in range(count)]
                    for first in range(0, count, 200):
                        sender.send_messages(messages[first : first + 200])

    @staticmethod
    def _message(index: int, number: int, destination: str) -> ServiceBusMessage:
        return ServiceBusMessage(
            f"{index}-{number}",
            message_id=f"{index}-{number}-{uuid.uuid4().hex[:6]}",
            application_properties={"x-ms-path": destination},
        )

    def depths(self) -> dict[int, int]:
        """Return queue index -> depth."""
        return {int(path.rpartition("/")[2]): depth for path, depth in self.pair.parked_by_queue().items()}


@pytest.fixture
def backlog(pair: Pair, tmp_path: Path) -> Backlog:
    """A backlog of two queues, empty."""
    made = Backlog(pair, tmp_path)
    made.create()
    return made


#: 2026-11-16 23:30 UTC, which is the evening before in New York.
MOMENT = 1_794_871_800_000


def write_toml(path: Path, mapping: dict[str, dict[str, Any]]) -> Path:
    """Write a configuration as TOML."""
    tables = [
        "\n".join([f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())])
        for name, table in mapping.items()
    ]
    path.write_text("\n".join(tables))
    return path


def write_journal(
    folder: Path | str,
    numbers: Mapping[int, str] | range,
    *,
    run: str = "run",
    queue_index: int = 0,
    batch: int = 0,
    attempt: int = 0,
    close: bool = True,
    outcome: Outcome = Outcome.DELIVERED,
    settled_at: int = MOMENT,
) -> None:
    """Write a journal of a run, with one row for each sequence number and its message id."""
    ids = numbers if isinstance(numbers, Mapping) else {number: f"id-{number}" for number in numbers}
    journal = open_journal(f"{folder}/{run}", Head("contoso", queue_index, batch, attempt))
    count = len(ids)
    journal.write(
        Rows(
            sequence_number=list(ids),
            message_id=list(ids.values()),
            session_id=[None] * count,
            destination=["orders"] * count,
            outcome=[outcome.value] * count,
            reason=[None] * count,
            parked_at=[settled_at - 1000] * count,
            settled_at=[settled_at] * count,
            size=[100] * count,
            delivery_count=[0] * count,
        )
    )
    if close:
        journal.close()
