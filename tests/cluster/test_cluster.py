"""The syphon on a real Spark cluster, with processes killed under it: a master and two workers on loopback, three
executors, spark-submit, and the environment that a user would ship.

The environment is the archive of `make environment`: pairbus' own wheel, Proton and the rest in one file, which Spark
takes to the executors (`--archives`). Nothing of the tests' own Python reaches them, which `--py-files` or a shared
virtual environment could not promise: a compiled module cannot come from a zip, and a Python that happens to be
there proves nothing about what was packed. The driver runs from the same archive, unpacked under the same name,
because the source's planner is started there with the executors' path of Python.

Whatever is killed in mid-drain: all messages are at their destinations with the bytes they were sent as, those of a
session in their order where they came first; the ledger accounts for each; no more come twice than were in flight; and
no process is left behind. Run with `make cluster-test`; needs Linux, for /proc and its many loopback addresses.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from tests.cluster.cluster_drain import EXECUTORS, WINDOW, Homecoming
from tests.cluster.processes import Process, kill, loaded_from
from tests.support.pairing import wait_until

pytestmark = pytest.mark.cluster


def test_a_good_day(homecoming: Homecoming, spark: SparkSession) -> None:
    """Three executors bring everything home once; they run what was packed, and no secret is in what they leave."""
    homecoming.slow_down()
    homecoming.submit()
    homecoming.wait_for_the_middle()
    assert len(homecoming.cluster.executors()) == EXECUTORS
    proton = [path for each in homecoming.draining() for path in loaded_from(each.pid, "cproton")]
    assert len(proton) == EXECUTORS
    assert all("/app-" in path and "/environment/" in path for path in proton), proton
    homecoming.hurry()
    homecoming.finish()
    homecoming.check(spark, most_repeats=0)
    homecoming.assert_no_secret()


VICTIMS: dict[str, Callable[[Homecoming], list[Process]]] = {
    # Its task is run again on another, and a new executor comes.
    "executor": lambda homecoming: homecoming.cluster.executors()[:1],
    # The process that holds the locks: its task is run again.
    "Python worker": lambda homecoming: homecoming.draining()[:1],
}


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_part_of_the_job_is_killed(homecoming: Homecoming, spark: SparkSession, victim: str) -> None:
    """Spark runs the task again, and nothing is lost."""
    homecoming.slow_down()
    homecoming.submit()
    homecoming.wait_for_the_middle()
    kill(VICTIMS[victim](homecoming))
    homecoming.hurry()
    homecoming.finish()
    homecoming.check(spark, most_repeats=WINDOW)


def test_a_worker_is_killed(homecoming: Homecoming, spark: SparkSession) -> None:
    """A machine is gone with all its executors: the other one does the work."""
    homecoming.slow_down()
    homecoming.submit()
    homecoming.wait_for_the_middle()
    lost = max(homecoming.cluster.workers, key=lambda worker: len(worker.executors())).crash()
    assert lost == 2
    homecoming.hurry()
    homecoming.finish()
    homecoming.check(spark, most_repeats=lost * WINDOW)


def test_the_driver_is_killed(homecoming: Homecoming, spark: SparkSession) -> None:
    """All it had started ends by itself; a new one with the same checkpoint brings home and accounts for the rest."""
    homecoming.slow_down()
    first = homecoming.submit()
    homecoming.wait_for_the_middle()
    first.kill()
    wait_until(lambda: not first.family(), 60, lambda: [str(each) for each in first.family()])
    homecoming.cluster.wait_until_idle()
    homecoming.hurry()
    homecoming.submit()
    homecoming.finish()
    homecoming.check(spark, most_repeats=EXECUTORS * WINDOW)


def test_the_primary_is_killed(homecoming: Homecoming, spark: SparkSession) -> None:
    """The outage begins anew in mid-drain, and ends: the job goes on, and stops in order when it is told to."""
    homecoming.slow_down()
    homecoming.submit("--continuous")
    homecoming.wait_for_the_middle()
    homecoming.pair.primary.kill()
    wait_until(lambda: not homecoming.draining(), 60, homecoming.told)
    homecoming.pair.primary.restart()
    homecoming.stop()
    homecoming.check(spark, most_repeats=EXECUTORS * WINDOW)


def test_the_secondary_is_killed(homecoming: Homecoming, spark: SparkSession) -> None:
    """The backlog itself is gone for a while: the query lives on, and drains it when it is back."""
    homecoming.slow_down()
    homecoming.submit("--continuous")
    homecoming.wait_for_the_middle()
    homecoming.pair.secondary.kill()
    homecoming.hurry()
    wait_until(lambda: not homecoming.draining(), 60)
    homecoming.pair.secondary.restart()
    homecoming.stop()
    homecoming.check(spark, most_repeats=EXECUTORS * WINDOW)
