"""A Spark standalone cluster on loopback, from pyspark's own package: a master, two workers and their jobs."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from pyspark.find_spark_home import _find_spark_home

from tests.cluster.processes import Process, below, kill, of_sessions
from tests.support.waiting import wait_until

SPARK_HOME = Path(_find_spark_home())
#: An address for each, as if they were machines: on Linux all of 127.0.0.0/8 is the loopback.
MASTER, WORKERS = "127.0.0.1", ("127.0.0.2", "127.0.0.3")
_WORKER_CORES, _WORKER_MEMORY = "2", "2g"
#: Seconds that a process of Spark's may take to start, or to end, on a busy machine.
_LIMIT = 90.0
_DEATH_OF_PARENT = 1  # PR_SET_PDEATHSIG


def clean_environment(**more: str) -> dict[str, str]:
    """Return the environment of a process of the cluster, without the variables of the tests' own Python."""
    kept = {name: os.environ[name] for name in ("JAVA_HOME", "HOME", "LANG", "PATH", "TMPDIR") if name in os.environ}
    return {**kept, "SPARK_HOME": str(SPARK_HOME), **more}


def free_port(host: str) -> int:
    with socket.create_server((host, 0)) as server:
        return int(server.getsockname()[1])


def _ends_with_its_parent() -> None:
    """Let the kernel kill this process when the tests end, however they do."""
    ctypes.CDLL(None).prctl(_DEATH_OF_PARENT, signal.SIGKILL)


class Started:
    """A process of Spark's in a session of its own, which logs to a file."""

    def __init__(self, command: Sequence[str], log: Path, cwd: Path, **environment: str) -> None:
        self.log = log
        with log.open("a") as out:
            self.process = subprocess.Popen(
                command,
                cwd=cwd,
                env=clean_environment(**environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_ends_with_its_parent,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def family(self) -> list[Process]:
        """Return all processes of its session, itself and orphans included."""
        return of_sessions({self.pid})

    def log_tail(self, bytes_from_end: int = 6000) -> str:
        """Return the end of its log."""
        with self.log.open("rb") as log:
            _skip_to_tail(log, bytes_from_end)
            return log.read().decode(errors="replace")

    def kill(self) -> None:
        """Send SIGKILL to the process itself, and to none of its children."""
        self.process.kill()
        self.process.wait(_LIMIT)

    def end(self) -> None:
        """Send SIGKILL to all processes of the session."""
        kill(self.family())
        self.process.wait(_LIMIT)
        wait_until(lambda: not self.family(), _LIMIT, lambda: [str(each) for each in self.family()])


def _skip_to_tail(log: IO[bytes], size: int) -> None:
    log.seek(0, os.SEEK_END)
    log.seek(max(log.tell() - size, 0))


class Worker(Started):
    """A worker, in the place of a machine."""

    def __init__(self, master: str, address: str, folder: Path) -> None:
        self.address = address
        folder.mkdir(parents=True, exist_ok=True)
        command = [str(SPARK_HOME / "bin" / "spark-class"), "org.apache.spark.deploy.worker.Worker", master]
        command += ["--host", address, "--port", "0", "--webui-port", "0", "--work-dir", str(folder / "work")]
        command += ["--cores", _WORKER_CORES, "--memory", _WORKER_MEMORY]
        super().__init__(command, folder / "worker.log", folder, **_settings(address, folder))

    def executors(self) -> list[Process]:
        """Return the JVMs that run this worker's tasks."""
        return [each for each in self.family() if "CoarseGrainedExecutorBackend" in each.command]

    def python_workers(self) -> list[Process]:
        """Return the Python workers: children of the daemon that each executor has."""
        family = self.family()
        daemons = {each.pid for each in family if "pyspark.daemon" in each.command}
        return [each for each in family if each.parent in daemons]

    def crash(self) -> int:
        """Send SIGKILL to the worker and its executors, and return the number of these."""
        executors = self.executors()
        kill([each for each in self.family() if each.pid == self.pid])
        kill(executors)
        self.process.wait(_LIMIT)
        return len(executors)


def _settings(address: str, folder: Path) -> dict[str, str]:
    return {
        "SPARK_LOCAL_IP": address,  # for the web pages too
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_CONF_DIR": str(folder),
        "SPARK_DAEMON_MEMORY": "256m",
        # It would listen on another port, which no test uses.
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
    }


class Cluster:
    """The master and its workers, as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port, self._page = free_port(MASTER), free_port(MASTER)
        self.url = f"spark://{MASTER}:{self._port}"
        self._master: Started | None = None
        self.workers: list[Worker] = []

    def __enter__(self) -> Cluster:
        folder = self._folder / "master"
        folder.mkdir(parents=True)
        command = [str(SPARK_HOME / "bin" / "spark-class"), "org.apache.spark.deploy.master.Master", "--host", MASTER]
        command += ["--port", str(self._port), "--webui-port", str(self._page)]
        self._master = Started(command, folder / "master.log", folder, **_settings(MASTER, folder))
        try:
            self.heal()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        for each in (*self.workers, *([self._master] if self._master else [])):
            each.end()

    def heal(self) -> None:
        """Replace dead workers."""
        for dead in [each for each in self.workers if not each.is_running]:
            dead.end()
            self.workers.remove(dead)
        there = {each.address for each in self.workers}
        for address in WORKERS:
            if address not in there:
                self.workers.append(Worker(self.url, address, self._folder / address))
        wait_until(lambda: self._alive() == len(WORKERS), _LIMIT, self.describe)

    def state(self) -> Mapping[str, Any]:
        """Return the state that the master's page shows; empty while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{MASTER}:{self._page}/json/", timeout=10) as answer:
                found: dict[str, Any] = json.load(answer)
        except (OSError, ValueError):
            return {}
        return found

    def _alive(self) -> int:
        return sum(each["state"] == "ALIVE" for each in self.state().get("workers", ()))

    def executors(self) -> list[Process]:
        return [executor for worker in self.workers for executor in worker.executors()]

    def python_workers(self) -> list[Process]:
        return [process for worker in self.workers for process in worker.python_workers()]

    def leftovers(self) -> list[str]:
        """Return the processes on the workers besides these themselves."""
        return [str(each) for worker in self.workers for each in worker.family() if each.pid != worker.pid]

    def wait_until_idle(self) -> None:
        """Wait until all processes of applications have ended."""
        wait_until(lambda: not self.leftovers(), _LIMIT, lambda: self.leftovers())

    def describe(self) -> str:
        """Return the master's state and the ends of all logs, for a test that fails."""
        started = [each for each in (self._master, *self.workers) if each is not None]
        logs = "\n".join(f"--- {each.log}\n{each.log_tail(2000)}" for each in started)
        state = self.state()
        return f"{state.get('aliveworkers')} workers, applications: {state.get('activeapps')}\n{logs}"


class Submission(Started):
    """A spark-submit: the driver's JVM, and Python as its child."""

    def __init__(self, cluster: Cluster, arguments: Sequence[str], *, cwd: Path, log: Path) -> None:
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.url, *arguments]
        super().__init__(command, log, cwd, **_settings(MASTER, log.parent))

    def ended(self, seconds: float) -> int:
        """Wait for its end, and return the exit code."""
        return self.process.wait(seconds)

    def pythons(self) -> list[Process]:
        """Return the driver's Python and that of the reader."""
        return [each for each in below(self.pid, self.family()) if "python" in each.command]

    def terminate(self) -> None:
        self.process.terminate()
