"""A graceful end under spark-submit, where signals go to the JVM and not to us.

SIGTERM and Ctrl-C make the JVM run its shutdown hooks, Spark's among them, and the query would be cut off in the midst
of its window. A hook of ours that goes before Spark's says `stop`, and lets Spark end once we are done.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

log = logging.getLogger("pairbus.syphon")

#: Hadoop runs its hooks from the highest priority to the lowest; Spark's has 40, that of the file systems 10.
_FIRST, _LAST = 100, 1
#: How long Hadoop may wait for the hook: a window in flight, and a ledger to be folded.
_PATIENCE_SECONDS = 600


class _Hook:
    """A `java.lang.Runnable` that is run here."""

    def __init__(self, do: Callable[[], object]) -> None:
        self._do = do

    def run(self) -> None:
        self._do()

    class Java:
        implements = ("java.lang.Runnable",)


@dataclass(slots=True)
class Ending:
    """How the JVM ends if it is told to while we are at work."""

    #: The exit code; the signal's own would look as if all had been cut off.
    code: int = 0


@contextlib.contextmanager
def before_spark_ends(spark: SparkSession, stop: threading.Event) -> Iterator[Ending]:
    """Within it a JVM that is told to end sets `stop`, and waits until this is left; then it ends with our code."""
    ending = Ending()
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        yield ending  # we are the main process: signals come to us
        return
    jvm: Any = spark._jvm
    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    told, left, over = threading.Event(), threading.Event(), threading.Event()

    def wind_down() -> None:
        log.info("Spark was told to end; stopping first")
        told.set()
        stop.set()
        left.wait(_PATIENCE_SECONDS)

    def end() -> None:
        try:
            jvm.java.lang.Runtime.getRuntime().halt(ending.code)
        finally:
            over.set()

    manager = jvm.org.apache.hadoop.util.ShutdownHookManager.get()
    seconds = jvm.java.util.concurrent.TimeUnit.SECONDS
    # As Java's threads, which are never started: hooks are kept by their hash, and a callback of ours has none.
    hooks = [(jvm.java.lang.Thread(_Hook(wind_down)), _FIRST), (jvm.java.lang.Thread(_Hook(end)), _LAST)]
    for hook, priority in hooks:
        manager.addShutdownHook(hook, priority, _PATIENCE_SECONDS, seconds)
    try:
        yield ending
    finally:
        left.set()
        if told.is_set():
            over.wait(_PATIENCE_SECONDS)  # Spark's own hooks run now, and then ours must be here to be called
        else:
            with contextlib.suppress(Py4JError):  # told in this moment: then the hooks find nobody, and do no harm
                for hook, _ in hooks:
                    manager.removeShutdownHook(hook)
