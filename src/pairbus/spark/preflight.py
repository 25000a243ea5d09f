"""Checks before a syphon starts: a set-up that cannot work is refused before any message moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import PythonException

from pairbus.errors import OptionError

from .batch_summary import SyphonError
from .drain_task import ExecutorCheck, pass_through
from .java_errors import root_cause
from .signals import FolderProbe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .ledger import Ledger


def refuse_speculation(spark: SparkSession) -> None:
    """Raise `OptionError` if Spark may run a task twice at the same time."""
    if (spark.conf.get("spark.speculation", "false") or "").lower() == "true":
        raise OptionError(
            "spark.speculation is true: Spark would run a slow task a second time beside the first, and the two "
            "would drain one queue at once. Set spark.speculation=false for this job"
        )


def create_tables(ledger: Ledger, path: str) -> None:
    """Create the ledger's tables if need be; raise `OptionError` if they cannot be used."""
    try:
        ledger.create()
    except Exception as error:
        raise OptionError(f"[ledger] path cannot be used: {path}: {root_cause(error)}") from error


def check_executors(spark: SparkSession, journal: str, run: str) -> None:
    """Raise `SyphonError` if executors lack pairbus or the journals, `OptionError` if the driver cannot write there."""
    slots = spark.sparkContext.defaultParallelism
    probe = FolderProbe(journal, run)
    try:
        probe.set()
    except OSError as error:
        raise OptionError(f"[ledger] journal cannot be written to: {error}") from error
    try:
        # A task of a batch has two processes, a reader and a drain. Both start here rather than in the first batch.
        checked = spark.range(0, slots, 1, slots).mapInArrow(ExecutorCheck(probe).run, "host string")
        hosts = {row.host for row in checked.mapInArrow(pass_through, "host string").collect()}
    except PythonException as error:
        cause = str(error).strip().rpartition("\n")[2]
        raise SyphonError(f"pairbus cannot be used on the executors; is it installed there? {cause}") from error
    finally:
        probe.remove()
    if hosts:
        raise SyphonError(
            f"[ledger] journal {journal} is not the same folder everywhere: what the driver writes there is not seen "
            f"on {', '.join(sorted(hosts))}. It must be on storage that all machines share, else rows of the ledger "
            "would be lost"
        )
