"""Support for tests of jobs: a small local SparkSession with Delta, and the configuration of a syphon for two localbus.

See docs/testing-your-job.md. None of it is for production.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import SparkSession

from pairbus.config.syphon_config import NamespaceReference, SyphonConfig

from .session import spark_session

_SMALL = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    # Planning a query again, and compiling it, takes longer than running it over a few rows.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
}


class Bus(Protocol):
    """The part of a `LocalBus` that a configuration needs."""

    name: str

    @property
    def connection_string(self) -> str: ...

    @property
    def ca_file(self) -> str: ...


def local_spark(app_name: str = "tests", **config: str) -> SparkSession:
    """Return a session on two cores that listens on the loopback address only.

    Starting it takes seconds, so make one for all tests, in a fixture of scope `session`, and stop it at the end.
    Spark settings in `config` override those that this function sets.
    """
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = spark_session(app_name, **{**_SMALL, **config})
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def syphon_config(primary: Bus, secondary: Bus, folder: str | os.PathLike[str], **syphon: Any) -> SyphonConfig:
    """Return the configuration of a syphon between two localbus processes.

    As in production it holds references and no secrets.

    Parameters
    ----------
    primary, secondary
        The two processes.
    folder
        Folder for the ledger, the checkpoint, and files with the connection strings, which only their owner can read.
    syphon
        Options of `[syphon]`, for example `queues=2`.
    """
    place = Path(folder).absolute()
    return SyphonConfig(
        primary=_reference(primary, place / "primary.connection"),
        secondary=_reference(secondary, place / "secondary.connection"),
        ledger=str(place / "ledger"),
        checkpoint=str(place / "checkpoint"),
        **syphon,
    )


def _reference(bus: Bus, file: Path) -> NamespaceReference:
    file.touch(mode=0o600)
    file.write_text(bus.connection_string)
    return NamespaceReference(connection=f"file:{file}", name=bus.name, ca_file=bus.ca_file)
