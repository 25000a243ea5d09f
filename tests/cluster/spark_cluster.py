"""A Spark standalone cluster on loopback, from pyspark's own package: a master, two workers, and what runs on them."""

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
from tests.support.pairing import wait_until

SPARK_HOME = Path(_find_spark_home())
#: Distinct addresses, as if they were machines: all of 127.0.0.0/8 is this one (on Linux).
MASTER, WORKERS = "127.0.0.1", ("127.0.0.2", "127.0.0.3")
_WORKER_CORES, _WORKER_MEMORY = "2", "2g"
#: How long a process of Spark's may take to start, or to end, on a machine that has much else to do.
_PATIENCE = 90.0
_DEATH_OF_PARENT = 1  # PR_SET_PDEATHSIG


def clean_environment(**more: str) -> dict[str, str]:
    """What a process of the cluster knows of ours: where Java is, and nothing of the tests' own Python."""
    kept = {name: os.environ[name] for name in ("JAVA_HOME", "HOME", "LANG", "PATH", "TMPDIR") if name in os.environ}
    return {**kept, "SPARK_HOME": str(SPARK_HOME), **more}


def free_port(host: str) -> int:
    with socket.create_server((host, 0)) as server:
        return int(server.getsockname()[1])


def _ends_with_its_parent() -> None:
    """Whatever becomes of the tests, no cluster of theirs stays behind."""
    ctypes.CDLL(None).prctl(_DEATH_OF_PARENT, signal.SIGKILL)


class Started:
    """A process of Spark's in a session of its own, which writes all it says to a file."""

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
        """All processes of its session, itself and orphans included."""
        return of_sessions({self.pid})

    def said(self, bytes_from_end: int = 6000) -> str:
        with self.log.open("rb") as log:
            _skip_to_tail(log, bytes_from_end)
            return log.read().decode(errors="replace")

    def kill(self) -> None:
        """SIGKILL to the process itself, and to nothing that it has started."""
        self.process.kill()
        self.process.wait(_PATIENCE)

    def end(self) -> None:
        """No goodbye for anybody of the session."""
        kill(self.family())
        self.process.wait(_PATIENCE)
        wait_until(lambda: not self.family(), _PATIENCE, lambda: [str(each) for each in self.family()])


def _skip_to_tail(log: IO[bytes], size: int) -> None:
    log.seek(0, os.SEEK_END)
    log.seek(max(log.tell() - size, 0))


class Worker(Started):
    """One machine of the cluster, so to speak."""

    def __init__(self, master: str, address: str, folder: Path) -> None:
        self.address = address
        folder.mkdir(parents=True, exist_ok=True)
        command = [str(SPARK_HOME / "bin" / "spark-class"), "org.apache.spark.deploy.worker.Worker", master]
        command += ["--host", address, "--port", "0", "--webui-port", "0", "--work-dir", str(folder / "work")]
        command += ["--cores", _WORKER_CORES, "--memory", _WORKER_MEMORY]
        super().__init__(command, folder / "worker.log", folder, **_settings(address, folder))

    def executors(self) -> list[Process]:
        """The JVMs that run tasks here."""
        return [each for each in self.family() if "CoarseGrainedExecutorBackend" in each.command]

    def python_workers(self) -> list[Process]:
        """The processes that run Python for the executors here: children of the daemon that each executor has."""
        family = self.family()
        daemons = {each.pid for each in family if "pyspark.daemon" in each.command}
        return [each for each in family if each.parent in daemons]

    def crash(self) -> int:
        """SIGKILL for the worker and its executors; how many executors those were."""
        executors = self.executors()
        kill([each for each in self.family() if each.pid == self.pid])
        kill(executors)
        self.process.wait(_PATIENCE)
        return len(executors)


def _settings(address: str, folder: Path) -> dict[str, str]:
    return {
        "SPARK_LOCAL_IP": address,  # the web pages keep to it too
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "SPARK_CONF_DIR": str(folder),
        "SPARK_DAEMON_MEMORY": "256m",
        # It has a port of its own, and nobody here asks there.
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
    }


class Cluster:
    """The master and its workers. Use it in a with statement."""

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
        """Two workers that run nothing: dead ones are started anew."""
        for dead in [each for each in self.workers if not each.is_running]:
            dead.end()
            self.workers.remove(dead)
        there = {each.address for each in self.workers}
        for address in WORKERS:
            if address not in there:
                self.workers.append(Worker(self.url, address, self._folder / address))
        wait_until(lambda: self._alive() == len(WORKERS), _PATIENCE, self.told)

    def state(self) -> Mapping[str, Any]:
        """What the master says of itself."""
        try:
            with urllib.request.urlopen(f"http://{MASTER}:{self._page}/json/", timeout=10) as answer:
                found: dict[str, Any] = json.load(answer)
        except (OSError, ValueError):
            return {}  # not yet: it does not answer, or with nothing
        return found

    def _alive(self) -> int:
        return sum(each["state"] == "ALIVE" for each in self.state().get("workers", ()))

    def executors(self) -> list[Process]:
        return [executor for worker in self.workers for executor in worker.executors()]

    def python_workers(self) -> list[Process]:
        return [process for worker in self.workers for process in worker.python_workers()]

    def leftovers(self) -> list[str]:
        """What runs on the workers besides the workers."""
        return [str(each) for worker in self.workers for each in worker.family() if each.pid != worker.pid]

    def wait_until_idle(self) -> None:
        """Until all that applications have started is gone."""
        wait_until(lambda: not self.leftovers(), _PATIENCE, lambda: self.leftovers())

    def told(self) -> str:
        """For a test that fails: what the master knows, and what was said last."""
        started = [each for each in (self._master, *self.workers) if each is not None]
        logs = "\n".join(f"--- {each.log}\n{each.said(2000)}" for each in started)
        state = self.state()
        return f"{state.get('aliveworkers')} workers, applications: {state.get('activeapps')}\n{logs}"


class Submission(Started):
    """A spark-submit: the driver's JVM, and its Python below it."""

    def __init__(self, cluster: Cluster, arguments: Sequence[str], *, cwd: Path, log: Path) -> None:
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.url, *arguments]
        super().__init__(command, log, cwd, **_settings(MASTER, log.parent))

    def ended(self, seconds: float) -> int:
        """Its exit code."""
        return self.process.wait(seconds)

    def pythons(self) -> list[Process]:
        """The driver's Python, and the one that plans for it."""
        return [each for each in below(self.pid, self.family()) if "python" in each.command]

    def terminate(self) -> None:
        self.process.terminate()
