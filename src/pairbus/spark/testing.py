"""For the tests of your own jobs: a small local SparkSession with Delta, and a syphon's configuration for two localbus.

See docs/testing-your-job.md. Nothing in here is for production.
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
    # A query over a few rows takes longer to be planned again and compiled than to run.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
}


class Bus(Protocol):
    """What is asked of a namespace: a `LocalBus` has it."""

    name: str

    @property
    def connection_string(self) -> str: ...

    @property
    def ca_file(self) -> str: ...


def local_spark(app_name: str = "tests", **config: str) -> SparkSession:
    """A session on two cores of this machine that listens to nobody else; stop it when all tests are done.

    Starting it takes seconds: make one for the whole run, in a fixture of scope `session`. `config` goes before what is
    set here.
    """
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = spark_session(app_name, **{**_SMALL, **config})
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def syphon_config(primary: Bus, secondary: Bus, folder: str | os.PathLike[str], **syphon: Any) -> SyphonConfig:
    """How a syphon finds its way between two localbus processes, with ledger and checkpoint below `folder`.

    It has references and no secrets, as in production: each connection string is in a file of `folder` that only you
    can read. `syphon` are options of `[syphon]`, for example `queues=2`.
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
