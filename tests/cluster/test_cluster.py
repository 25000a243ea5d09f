"""The syphon on a real Spark cluster, whose processes are killed during the drain.

The cluster is a master and two workers on loopback, with three executors. They run the archive of `make environment`,
as a user would ship it (`--archives`), and nothing of the tests' own Python: a shared virtual environment would not
show what is missing in the archive. The driver runs from the same archive, unpacked under the same name, because Spark
starts the reader beside the driver with the executors' path of Python.

After each kill all messages arrive unchanged, those of a session in order, the ledger accounts for each, no more arrive
twice than were in flight, and no process is left behind. Run with `make cluster-test`; needs Linux, for /proc and its
loopback addresses.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from tests.cluster.cluster_drain import EXECUTORS, WINDOW, ClusterDrain
from tests.cluster.processes import Process, kill, loaded_from
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


def test_without_kills(cluster_drain: ClusterDrain, spark: SparkSession) -> None:
    """Three executors deliver every message once, from the packed environment; no secret is in any file they leave."""
    cluster_drain.slow_down()
    cluster_drain.submit()
    cluster_drain.wait_for_the_middle()
    assert len(cluster_drain.cluster.executors()) == EXECUTORS
    proton = [path for each in cluster_drain.draining() for path in loaded_from(each.pid, "cproton")]
    assert len(proton) == EXECUTORS
    assert all("/app-" in path and "/environment/" in path for path in proton), proton
    cluster_drain.hurry()
    cluster_drain.finish()
    cluster_drain.check(spark, most_repeats=0)
    cluster_drain.assert_no_secret()


VICTIMS: dict[str, Callable[[ClusterDrain], list[Process]]] = {
    # Spark runs its task again on another executor, and starts a new one.
    "executor": lambda cluster_drain: cluster_drain.cluster.executors()[:1],
    # The process that holds the locks: Spark runs its task again.
    "Python worker": lambda cluster_drain: cluster_drain.draining()[:1],
}


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_part_of_the_job_is_killed(cluster_drain: ClusterDrain, spark: SparkSession, victim: str) -> None:
    """Spark runs the task again, and no message is lost."""
    cluster_drain.slow_down()
    cluster_drain.submit()
    cluster_drain.wait_for_the_middle()
    kill(VICTIMS[victim](cluster_drain))
    cluster_drain.hurry()
    cluster_drain.finish()
    cluster_drain.check(spark, most_repeats=WINDOW)


def test_a_worker_is_killed(cluster_drain: ClusterDrain, spark: SparkSession) -> None:
    """A machine with all its executors: the other one finishes the work."""
    cluster_drain.slow_down()
    cluster_drain.submit()
    cluster_drain.wait_for_the_middle()
    lost = max(cluster_drain.cluster.workers, key=lambda worker: len(worker.executors())).crash()
    assert lost == 2
    cluster_drain.hurry()
    cluster_drain.finish()
    cluster_drain.check(spark, most_repeats=lost * WINDOW)


def test_the_driver_is_killed(cluster_drain: ClusterDrain, spark: SparkSession) -> None:
    """Its processes end by themselves; a new driver with the same checkpoint delivers and accounts for the rest."""
    cluster_drain.slow_down()
    first = cluster_drain.submit()
    cluster_drain.wait_for_the_middle()
    first.kill()
    wait_until(lambda: not first.family(), 60, lambda: [str(each) for each in first.family()])
    cluster_drain.cluster.wait_until_idle()
    cluster_drain.hurry()
    cluster_drain.submit()
    cluster_drain.finish()
    cluster_drain.check(spark, most_repeats=EXECUTORS * WINDOW)


def test_the_primary_is_killed(cluster_drain: ClusterDrain, spark: SparkSession) -> None:
    """A second outage, in the middle of the drain: the job goes on after it, and ends in order when it is stopped."""
    cluster_drain.slow_down()
    cluster_drain.submit("--continuous")
    cluster_drain.wait_for_the_middle()
    cluster_drain.pair.primary.kill()
    wait_until(lambda: not cluster_drain.draining(), 60, cluster_drain.describe)
    cluster_drain.pair.primary.restart()
    cluster_drain.stop()
    cluster_drain.check(spark, most_repeats=EXECUTORS * WINDOW)


def test_the_secondary_is_killed(cluster_drain: ClusterDrain, spark: SparkSession) -> None:
    """The backlog is unavailable for a while: the query lives on, and drains it afterwards."""
    cluster_drain.slow_down()
    cluster_drain.submit("--continuous")
    cluster_drain.wait_for_the_middle()
    cluster_drain.pair.secondary.kill()
    cluster_drain.hurry()
    wait_until(lambda: not cluster_drain.draining(), 60)
    cluster_drain.pair.secondary.restart()
    cluster_drain.stop()
    cluster_drain.check(spark, most_repeats=EXECUTORS * WINDOW)
