"""A graceful end under spark-submit, where SIGTERM and Ctrl-C go to the JVM.

The JVM then runs its shutdown hooks. Spark's hook would cut the query off with messages in flight, so a hook that runs
before it requests a stop, and holds Spark's back until the job has ended.
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

#: Hadoop runs its hooks from the highest priority to the lowest. Spark's has 40, that of the file systems 10.
_FIRST, _LAST = 100, 1
#: The longest time that Hadoop waits for a hook: for messages in flight, and a fold of the ledger.
_HOOK_SECONDS = 600


class _Hook:
    """A `java.lang.Runnable` that calls a Python function."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function

    def run(self) -> None:
        self._function()

    class Java:
        implements = ("java.lang.Runnable",)


@dataclass(slots=True)
class Ending:
    """The end of a JVM that was shut down by a signal."""

    #: The JVM's exit code. That of the signal would stand for a job that was cut off.
    code: int = 0


@contextlib.contextmanager
def before_spark_ends(spark: SparkSession, stop: threading.Event) -> Iterator[Ending]:
    """Let a JVM that is shut down set `stop`, wait for the end of this context, and exit with the yielded code."""
    ending = Ending()
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        yield ending  # Python is the main process and receives the signals itself
        return
    jvm: Any = spark._jvm
    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    shutting_down, context_ended, exited = threading.Event(), threading.Event(), threading.Event()

    def request_stop() -> None:
        log.info("Spark is shut down by a signal; stopping the job first")
        shutting_down.set()
        stop.set()
        context_ended.wait(_HOOK_SECONDS)

    def exit_with_code() -> None:
        try:
            jvm.java.lang.Runtime.getRuntime().halt(ending.code)
        finally:
            exited.set()

    manager = jvm.org.apache.hadoop.util.ShutdownHookManager.get()
    seconds = jvm.java.util.concurrent.TimeUnit.SECONDS
    # Wrapped in threads, which are never started: Hadoop keeps hooks by their hash, and a Python callback has none.
    hooks = [(jvm.java.lang.Thread(_Hook(request_stop)), _FIRST), (jvm.java.lang.Thread(_Hook(exit_with_code)), _LAST)]
    for hook, priority in hooks:
        manager.addShutdownHook(hook, priority, _HOOK_SECONDS, seconds)
    try:
        yield ending
    finally:
        context_ended.set()
        if shutting_down.is_set():
            exited.wait(_HOOK_SECONDS)  # Spark's hooks run now, and the JVM then calls the last hook in this process
        else:
            with contextlib.suppress(Py4JError):  # the shutdown has begun; without Python the hooks do nothing
                for hook, _ in hooks:
                    manager.removeShutdownHook(hook)
