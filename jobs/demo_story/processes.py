"""The two Spark processes: the drain, started with the usual command, and the reader of the ledger.

Each has a process session of its own, so a Ctrl-C in the terminal reaches only the demo, which stops them in order.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyspark

from pairbus.localbus import LocalBus
from pairbus.spark.session import DELTA, SHIPPED_WITH_SPARK, delta_jars

#: A JVM that runs for half a minute does not benefit from the optimising compiler.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
ROOT = Path(__file__).resolve().parent.parent.parent
P = TypeVar("P", bound="Process")

_PATIENCE_SECONDS = 300.0
_GOODBYE_SECONDS = 20.0


@dataclass(frozen=True)
class Drain:
    """The drain: its configuration without secrets, and the environment that holds them."""

    folder: Path
    primary: LocalBus
    secondary: LocalBus
    queues: int

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    def write_config(self) -> Path:
        """Write the configuration file, with references in place of secrets."""
        file = self.folder / "pairbus.toml"
        file.write_text(
            f"""\
# Written by make demo. The secrets are in the environment of the job.
[primary]
connection = "env:PAIRBUS_PRIMARY"
name = "{self.primary.name}"
ca_file = {json.dumps(self.primary.ca_file)}

[secondary]
connection = "env:PAIRBUS_SECONDARY"
name = "{self.secondary.name}"
ca_file = {json.dumps(self.secondary.ca_file)}

[syphon]
queues = {self.queues}

[ledger]
path = {json.dumps(str(self.ledger))}
checkpoint = {json.dumps(str(self.folder / "checkpoint"))}
"""
        )
        return file

    def command(self) -> list[str]:
        """Return the command: spark-submit of the pip package, on two cores."""
        if jars := delta_jars():
            delta = ["--jars", ",".join(map(str, jars))]
        else:
            delta = ["--packages", DELTA, "--exclude-packages", ",".join(SHIPPED_WITH_SPARK)]
        return [
            str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
            "--master=local[2]",
            *delta,
            "--conf=spark.ui.enabled=false",
            "--conf=spark.driver.bindAddress=127.0.0.1",
            f"--driver-java-options=-Xss8m {SHORT_LIVED}",
            str(ROOT / "jobs" / "drain.py"),
            f"--config={self.folder / 'pairbus.toml'}",
            "--once",
        ]

    def told(self) -> str:
        """Return a short form of the command, for printing."""
        jars = "--jars …" if delta_jars() else f"--packages {DELTA}"
        file = shlex.quote(_from_here(self.folder / "pairbus.toml"))
        return f"spark-submit --master 'local[2]' {jars} jobs/drain.py --config {file} --once"

    def run(self, watch: Callable[[], None]) -> None:
        """Run the drain. Raises SystemExit if the job fails."""
        environment = {
            "PAIRBUS_PRIMARY": self.primary.connection_string,
            "PAIRBUS_SECONDARY": self.secondary.connection_string,
        }
        log = self.folder / "drain.log"
        with Process("the Spark job", self.command(), log, environment) as process:
            process.wait(watch)


class Process:
    """A process with its output in a file. Leaving the `with` block ends it and its children."""

    def __init__(self, name: str, command: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        self._name, self._command, self._log = name, command, log
        usual = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        self._environment = {**os.environ, **usual, **environment}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self: P) -> P:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )
        return self

    def wait(self, watch: Callable[[], None]) -> None:
        """Wait for a successful end and call `watch` in the meantime."""
        assert self._process is not None
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while (code := self._process.poll()) is None:
            if time.monotonic() > deadline:
                raise SystemExit(
                    f"make demo: {self._name} has not ended after {_PATIENCE_SECONDS:.0f} s; {self._tail()}"
                )
            watch()
            time.sleep(0.1)
        if code != 0:
            raise SystemExit(f"make demo: {self._name} ended with {code}; {self._tail()}")

    def _tail(self) -> str:
        said = self._log.read_text(errors="replace").splitlines()[-15:]
        return "\n  ".join([f"the end of {_from_here(self._log)}:", *said])

    def __exit__(self, *args: object) -> None:
        process = self._process
        assert process is not None
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):  # killed below
                process.wait(_GOODBYE_SECONDS)
        # The process leads a group: end all that is left of it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Audit(Process):
    """The process of `audit.py`, which reads the ledger."""

    def __init__(self, folder: Path) -> None:
        self._answer = folder / "audit.json"
        command = [sys.executable, str(Path(__file__).with_name("audit.py")), str(folder / "ledger"), str(self._answer)]
        super().__init__("the audit", command, folder / "audit.log", {})

    def answer(self, watch: Callable[[], None]) -> dict[str, Any]:
        """Wait for the end of the process and return its result."""
        self.wait(watch)
        found: dict[str, Any] = json.loads(self._answer.read_text())
        return found


def _from_here(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
