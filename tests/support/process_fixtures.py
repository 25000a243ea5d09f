"""A localbus process and quick, impatient clients for it: what the tests of processes, faults and stores share."""

from __future__ import annotations

import base64
import gc
import hashlib
import hmac
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote_plus

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.localbus import LocalBus

#: No retries, and nothing waits longer than this: a test that fails says so soon.
QUICK: dict[str, Any] = {"retry_total": 0, "try_timeout": 30}
#: What a client does not hand down to its senders and receivers. Joining the thread that keeps a link alive takes
#: half a second whenever one is closed.
_PER_LINK: dict[str, Any] = {"keep_alive": 0, "auth_timeout": 30, "timeout": 30}


def connect(connection_string: str, **options: Any) -> ServiceBusClient:
    """An impatient data client."""
    client = ServiceBusClient.from_connection_string(connection_string, **{**QUICK, **options})
    for name in ("get_queue_sender", "get_queue_receiver", "get_topic_sender", "get_subscription_receiver"):
        setattr(client, name, partial(getattr(client, name), **_PER_LINK))
    return client


def administer(bus: LocalBus | Command, connection_string: str | None = None) -> ServiceBusAdministrationClient:
    """An administration client of a bus."""
    return ServiceBusAdministrationClient.from_connection_string(
        connection_string or bus.connection_string, connection_verify=bus.ca_file, retry_total=0
    )


def create(bus: LocalBus | Command, *queues: str, **settings: Any) -> None:
    """Create queues."""
    with administer(bus) as admin:
        for queue in queues:
            admin.create_queue(queue, **settings)


def counts(bus: LocalBus | Command, queue: str) -> tuple[int, int, int]:
    """A queue's active, dead-lettered and scheduled messages."""
    with administer(bus) as admin:
        found = admin.get_queue_runtime_properties(queue)
    return (
        int(found.active_message_count or 0),
        int(found.dead_letter_message_count or 0),
        int(found.scheduled_message_count or 0),
    )


def active(bus: LocalBus | Command, queue: str) -> int:
    return counts(bus, queue)[0]


def send(client: ServiceBusClient, entity: str, *bodies: str | ServiceBusMessage, topic: bool = False) -> None:
    """Send each body, in one batch."""
    messages = [body if isinstance(body, ServiceBusMessage) else ServiceBusMessage(body) for body in bodies]
    with client.get_topic_sender(entity) if topic else client.get_queue_sender(entity) as sender:
        sender.send_messages(messages)


def bodies(messages: list[Any]) -> list[str]:
    return [str(message) for message in messages]


def drain(receiver: Any, wait: float = 1.0, at_most: int = 1000) -> list[Any]:
    """Receive and complete until nothing has come for a while."""
    found: list[Any] = []
    while len(found) < at_most:
        got = receiver.receive_messages(100, max_wait_time=wait)
        if not got:
            break
        for message in got:
            receiver.complete_message(message)
        found += got
    return found


def take(receiver: Any, number: int) -> list[Any]:
    """Receive so many, in as many calls as it takes, and settle none."""
    found: list[Any] = []
    while len(found) < number:
        got = receiver.receive_messages(number - len(found), max_wait_time=60)
        assert got, f"only {len(found)} of {number} came"
        found += got
    return found


def is_up(bus: LocalBus) -> bool:
    """Return True while the process of a bus runs, paused or not."""
    return bus._process is not None and bus._process.poll() is None


def revive(bus: LocalBus) -> None:
    """Resume or restart a bus, and end its faults."""
    bus.resume()
    if not is_up(bus):
        bus.restart()
    elif bus.faults.list():
        bus.faults.clear()


def is_retryable(error: BaseException) -> bool:
    """Return True if the SDK would try again after this error; it has no public name for that."""
    return bool(error._retryable)  # type: ignore[attr-defined]


def sas_token(uri: str, key_name: str, key: str, expires_at: float) -> str:
    """A shared access signature, as the SDKs make it."""
    resource, expiry = quote_plus(uri), str(int(expires_at))
    digest = hmac.new(key.encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256).digest()
    signature = quote_plus(base64.b64encode(digest))
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={quote_plus(key_name)}"


def key_of(connection_string: str) -> str:
    return connection_string.split("SharedAccessKey=")[1].split(";")[0]


def with_key(connection_string: str, name: str, key: str) -> str:
    """The same endpoint with another key."""
    endpoint = connection_string.split(";")[0]
    return f"{endpoint};SharedAccessKeyName={name};SharedAccessKey={key};UseDevelopmentEmulator=true;"


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


class Command:
    """`pairbus localbus` with any arguments: started, read, stopped."""

    def __init__(
        self,
        *arguments: object,
        env: dict[str, str] | None = None,
        open_files: int | None = None,
        under: Sequence[str] = (),
    ) -> None:
        limited = [] if open_files is None else ["sh", "-c", f'ulimit -Sn {open_files}; exec "$@"', "sh"]
        self.process = subprocess.Popen(
            [*limited, *under, sys.executable, "-m", "pairbus.cli", "localbus", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        self.ready: dict[str, Any] = json.loads(self.line) if self.line else {}

    @property
    def host(self) -> str:
        return str(self.ready["host"])

    @property
    def port(self) -> int:
        return int(self.ready["port"])

    @property
    def connection_string(self) -> str:
        return str(self.ready["connection_string"])

    @property
    def ca_file(self) -> str:
        return str(self.ready["ca_file"])

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
        """Its exit code, and what it said after the ready line, on each of its outputs."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=15)
        return self.process.returncode, out, err

    def __enter__(self) -> Command:
        if not self.ready:
            raise AssertionError(f"localbus did not start: {self.stop()[2]}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.returncode is None:
            self.stop(signal.SIGKILL)


def refused(*arguments: object, env: dict[str, str] | None = None) -> tuple[int, str]:
    """The exit code and error output of a command that must not start."""
    found = Command(*arguments, env=env)
    code, _, said = found.stop(signal.SIGKILL)
    assert not found.line, f"it started: {found.line}"
    return code, said


@pytest.fixture
def collected() -> Iterator[None]:
    """The SDK forgets the socket of a connection that the server ended: nothing of it reaches the next test."""
    yield
    gc.collect()


#: For tests in which a server ends under the SDK's connections.
FORGETS_SOCKETS = [pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"), pytest.mark.usefixtures("collected")]


@contextmanager
def queue_of(bus: LocalBus, name: str, **settings: Any) -> Iterator[str]:
    """A queue for the length of a test."""
    with administer(bus) as admin:
        admin.create_queue(name, **settings)
        yield name
        admin.delete_queue(name)
