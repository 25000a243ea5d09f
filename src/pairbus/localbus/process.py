"""`LocalBus`: a localbus server process that Python code starts, pauses, kills and restarts."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from .auth import DEFAULT_KEY_NAME
from .errors import LocalBusError
from .faults.client import FaultClient

_START_SECONDS = 30.0
_STOP_SECONDS = 10.0
#: A shell script that kills the process of its argument when its input ends without a line: its parent has ended.
_WATCHDOG = 'read -r word || kill -KILL "$1"'


class LocalBus:
    """A localbus process: `with LocalBus(name="contoso") as bus: ... bus.connection_string`.

    Arguments:
        name: the namespace's name.
        store: a SQLite file that keeps everything; without it the namespace is empty after a restart.
        port: the port; 0 takes a free one.
        key, key_name: the shared access key; by default a random one.
        entities: a TOML file with the entities to create.
        accept_any_jwt: accept any Entra (JWT) token.

    Port, key and certificates stay the same over `restart()`. Methods raise `LocalBusError` if the process does not
    start or is not running.
    """

    def __init__(
        self,
        name: str = "contoso",
        *,
        store: str | os.PathLike[str] | None = None,
        port: int = 0,
        key: str | None = None,
        key_name: str = DEFAULT_KEY_NAME,
        entities: str | os.PathLike[str] | None = None,
        accept_any_jwt: bool = False,
    ) -> None:
        self.name = name
        self.host = "127.0.0.1"
        self.port = port
        # Absolute, so that a restart finds the files after the program has changed its working directory.
        self._store = None if store is None else Path(store).absolute()
        self._key = key
        self._key_name = key_name
        self._entities = None if entities is None else Path(entities).absolute()
        self._accept_any_jwt = accept_any_jwt
        self._process: subprocess.Popen[str] | None = None
        self._folder: Path | None = None
        self._ready: dict[str, Any] = {}
        self._watchdog: subprocess.Popen[bytes] | None = None
        #: Held to pause, resume or end the process, which several threads may do.
        self._pause_lock = threading.Lock()

    def __repr__(self) -> str:
        state = f"port {self.port}, pid {self._process.pid}" if self._process is not None else "not running"
        return f"<LocalBus {self.name!r}: {state}>"

    @property
    def connection_string(self) -> str:
        """Connection string for the data clients and the administration client; it contains the key."""
        return str(self._fact("connection_string"))

    @property
    def tls_connection_string(self) -> str:
        """Connection string without `UseDevelopmentEmulator`: clients use TLS and must trust `ca_file`.

        Azure's Python SDK then connects to port 5671, whatever the port of this process. Start with `port=5671`, or
        give the client `custom_endpoint_address=f"sb://127.0.0.1:{bus.port}"` and `transport_type=TransportType.Amqp`.
        """
        return self.connection_string.replace("UseDevelopmentEmulator=true;", "")

    @property
    def ca_file(self) -> str:
        """Path of the CA certificate, for `connection_verify`."""
        return str(self._fact("ca_file"))

    @property
    def pid(self) -> int:
        """Process id."""
        return self._running().pid

    @property
    def faults(self) -> FaultClient:
        """Client that sets and clears faults."""
        return FaultClient(self.host, self.port, self.connection_string, self.ca_file)

    def _fact(self, key: str) -> Any:
        if not self._ready:
            raise LocalBusError("this LocalBus was never started: use it in a with statement, or call start()")
        return self._ready[key]

    def start(self) -> LocalBus:
        """Start the process; return when it accepts connections."""
        if self._process is not None:
            raise LocalBusError(f"{self!r} is running already")
        first = self._folder is None
        try:
            self._start()
        except BaseException:
            self._kill_if_started()
            if first:
                self._remove_folder()
            raise
        return self

    def _kill_if_started(self) -> None:
        if self._process is not None:
            self._end(signal.SIGKILL)

    def _start(self) -> None:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="localbus-"))
        arguments = ["--name", self.name, "--port", str(self.port), "--key-name", self._key_name]
        # However this program ends, its end of the pipe is closed then, and localbus stops.
        arguments += ["--tls-folder", str(self._folder / "tls"), "--until-eof"]
        environment = dict(os.environ)
        if self._key is not None:
            # Not on the command line, which all users of the machine can read.
            environment["LOCALBUS_KEY"] = self._key
            arguments += ["--key", "env:LOCALBUS_KEY"]
        if self._store is not None:
            arguments += ["--store", str(self._store)]
        if self._entities is not None:
            arguments += ["--entities", str(self._entities)]
        if self._accept_any_jwt:
            arguments += ["--accept-any-jwt"]
        errors = (self._folder / "stderr.txt").open("w+", encoding="utf-8")
        with errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pairbus.cli", "localbus", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                text=True,
                # Ctrl-C goes to this program only, which stops localbus itself.
                start_new_session=True,
            )
        self._ready = self._await_ready()
        self.port = int(self._ready["port"])
        self._key = self._key or self._ready["connection_string"].split("SharedAccessKey=")[1].split(";")[0]

    def _await_ready(self) -> dict[str, Any]:
        process = self._running()
        assert process.stdout is not None
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.append(process.stdout.readline()), daemon=True)  # type: ignore[union-attr]
        reader.start()
        reader.join(_START_SECONDS)
        if not lines or not lines[0]:
            self._end(signal.SIGKILL)
            raise LocalBusError(f"localbus did not start: {self.log or 'the process printed nothing'}")
        found: dict[str, Any] = json.loads(lines[0])
        return found

    @property
    def log(self) -> str:
        """The process's log since its last start, for example of requests for entities that do not exist."""
        if self._folder is None:
            return ""
        with contextlib.suppress(OSError):
            return (self._folder / "stderr.txt").read_text(encoding="utf-8").strip()
        return ""

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise LocalBusError(f"{self!r}: call start() first")
        return self._process

    def stop(self) -> None:
        """Close all connections, commit everything and end the process; do nothing if it is not running."""
        if self._process is not None:
            self.resume()
            self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process (SIGKILL): connections are cut, and what is not committed is lost."""
        self._running()
        self._end(signal.SIGKILL)

    def restart(self) -> LocalBus:
        """Stop the process if it is running, and start it again on the same port with the same key."""
        self.stop()
        deadline = time.monotonic() + _STOP_SECONDS
        while True:
            try:
                return self.start()
            except LocalBusError:
                # The kernel may keep the port for a moment after a kill.
                if time.monotonic() > deadline or _port_free(self.port):
                    raise
                time.sleep(0.1)

    def pause(self) -> None:
        """Freeze the process (SIGSTOP): connections stay open without answers, until `resume()`."""
        with self._pause_lock:
            process = self._running()
            if self._watchdog is None:
                # A frozen process cannot notice the end of this program and would stay for ever, so a small shell
                # kills it then. (Linux's parent-death signal is no alternative: it is sent when the thread ends that
                # has started the process.)
                self._watchdog = subprocess.Popen(
                    ["/bin/sh", "-c", _WATCHDOG, "sh", str(process.pid)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # keeps Ctrl-C away from it
                )
            process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """End a pause."""
        with self._pause_lock:
            if self._watchdog is not None:
                self._end_pause(self._running())

    def _end_pause(self, process: subprocess.Popen[str]) -> None:
        if self._watchdog is None:
            return
        process.send_signal(signal.SIGCONT)
        watchdog, self._watchdog = self._watchdog, None
        with contextlib.suppress(BrokenPipeError):  # it was killed
            watchdog.communicate(b"resumed\n", timeout=_STOP_SECONDS)

    def _end(self, number: signal.Signals) -> None:
        process = self._process
        assert process is not None
        self._process = None
        if process.poll() is None:
            process.send_signal(number)
        with self._pause_lock:
            self._end_pause(process)  # after the signal, so that a frozen process does nothing before it is killed
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def close(self) -> None:
        """Stop the process and remove its temporary files; the store stays."""
        try:
            self.stop()
        finally:
            self._remove_folder()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def __enter__(self) -> LocalBus:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _port_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return True
    return False
