"""`LocalBus`: the server process, started, found, frozen, killed and restarted from Python."""

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
#: Reads until a word comes (then all is well) or its input ends, as it does however its parent ends: then it kills.
_WATCH = 'read -r word || kill -KILL "$1"'


class LocalBus:
    """A localbus process: `with LocalBus(name="contoso") as bus: ... bus.connection_string`.

    `store` keeps everything in a SQLite file; without it a restart begins empty. `entities` is a TOML file. Keys,
    port and certificates stay the same over `restart()`.
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
        # Absolute: a restart must find the same files, wherever the program has gone meanwhile.
        self._store = None if store is None else Path(store).absolute()
        self._key = key
        self._key_name = key_name
        self._entities = None if entities is None else Path(entities).absolute()
        self._accept_any_jwt = accept_any_jwt
        self._process: subprocess.Popen[str] | None = None
        self._folder: Path | None = None
        self._ready: dict[str, Any] = {}
        self._watch: subprocess.Popen[bytes] | None = None
        #: One thread may pause it while another resumes or ends it.
        self._pausing = threading.Lock()

    def __repr__(self) -> str:
        state = f"port {self.port}, pid {self._process.pid}" if self._process is not None else "not running"
        return f"<LocalBus {self.name!r}: {state}>"

    # --- facts -----------------------------------------------------------------------------------------

    @property
    def connection_string(self) -> str:
        """For data clients and the administration client alike; it holds the key."""
        return str(self._fact("connection_string"))

    @property
    def tls_connection_string(self) -> str:
        """The same without `UseDevelopmentEmulator`: clients speak TLS and must trust `ca_file`.

        Azure's Python SDK then dials 5671 whatever the port here. Start with `port=5671`, or give the client
        `custom_endpoint_address=f"sb://127.0.0.1:{bus.port}"` and `transport_type=TransportType.Amqp`.
        """
        return self.connection_string.replace("UseDevelopmentEmulator=true;", "")

    @property
    def ca_file(self) -> str:
        """The certificate that signs localbus's own, for `connection_verify`."""
        return str(self._fact("ca_file"))

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def faults(self) -> FaultClient:
        """What goes wrong from now on."""
        return FaultClient(self.host, self.port, self.connection_string, self.ca_file)

    def _fact(self, key: str) -> Any:
        if not self._ready:
            raise LocalBusError("this LocalBus was never started: use it in a with statement, or call start()")
        return self._ready[key]

    # --- life ------------------------------------------------------------------------------------------

    def start(self) -> LocalBus:
        """Start the process; returns when it serves."""
        if self._process is not None:
            raise LocalBusError(f"{self!r} is running already")
        first = self._folder is None
        try:
            self._start()
        except BaseException:
            self._give_up()
            if first:
                self._tidy()
            raise
        return self

    def _give_up(self) -> None:
        if self._process is not None:
            self._end(signal.SIGKILL)

    def _start(self) -> None:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="localbus-"))
        arguments = ["--name", self.name, "--port", str(self.port), "--key-name", self._key_name]
        # Whatever becomes of this program, its end of the pipe is closed then, and the process stops.
        arguments += ["--tls-folder", str(self._folder / "tls"), "--until-eof"]
        environment = dict(os.environ)
        if self._key is not None:
            # Not on the command line: everybody on the machine can read that.
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
                # Ctrl-C is for the program that uses the bus; it stops the bus itself, in its own order.
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
            raise LocalBusError(f"localbus did not start: {self.log or 'it said nothing'}")
        found: dict[str, Any] = json.loads(lines[0])
        return found

    @property
    def log(self) -> str:
        """What the process has logged since its last start, of clients that asked for what is not there for example."""
        if self._folder is None:
            return ""
        with contextlib.suppress(OSError):
            return (self._folder / "stderr.txt").read_text(encoding="utf-8").strip()
        return ""

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise LocalBusError(f"{self!r}: start it first")
        return self._process

    def stop(self) -> None:
        """Stop as SIGTERM does: clients are told, everything is committed. Nothing happens if it is not running."""
        if self._process is not None:
            self.resume()
            self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: no goodbye, nothing flushed."""
        self._running()
        self._end(signal.SIGKILL)

    def restart(self) -> LocalBus:
        """Start again on the same port with the same keys; stops first if it runs."""
        self.stop()
        deadline = time.monotonic() + _STOP_SECONDS
        while True:
            try:
                return self.start()
            except LocalBusError:
                # The kernel may hold the port for a moment after a kill.
                if time.monotonic() > deadline or _port_free(self.port):
                    raise
                time.sleep(0.1)

    def pause(self) -> None:
        """Freeze the process: connections stay open, nothing answers."""
        with self._pausing:
            process = self._running()
            if self._watch is None:
                # Frozen, the process cannot see that we are gone, and would stay for ever. Somebody else has to look:
                # a shell, as small as a process can be, that begins before the pause. (Linux could kill the process
                # with its parent, but means by that the thread that started it, which may end long before the program.)
                self._watch = subprocess.Popen(
                    ["/bin/sh", "-c", _WATCH, "sh", str(process.pid)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C is not for it either
                )
            process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """End a pause."""
        with self._pausing:
            if self._watch is not None:
                self._end_pause(self._running())

    def _end_pause(self, process: subprocess.Popen[str]) -> None:
        if self._watch is None:
            return
        process.send_signal(signal.SIGCONT)
        watch, self._watch = self._watch, None
        with contextlib.suppress(BrokenPipeError):  # somebody has killed it
            watch.communicate(b"resumed\n", timeout=_STOP_SECONDS)

    def _end(self, number: signal.Signals) -> None:
        process = self._process
        assert process is not None
        self._process = None
        if process.poll() is None:
            process.send_signal(number)
        with self._pausing:
            self._end_pause(process)  # after the signal: a frozen process that is killed does nothing in between
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def close(self) -> None:
        """Stop, and remove what the process kept beside its store."""
        try:
            self.stop()
        finally:
            self._tidy()

    def _tidy(self) -> None:
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
