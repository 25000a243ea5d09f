"""What a pairing is made of: two namespaces and its options; frozen, checked, and silent about secrets."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

from .domain.backlog import namespace_name
from .errors import OptionError

if TYPE_CHECKING:
    from .sending.events import Event

Duration = float | timedelta

_MINUTE = 60.0
#: Option → the least and the most it may be, in seconds, and how that is said.
_RANGES: dict[str, tuple[float, float, str]] = {
    "failover_interval": (0.0, 60 * _MINUTE, "0 … 60 min"),
    "ping_primary_interval": (1.0, 30 * _MINUTE, "1 s … 30 min"),
    "ping_timeout": (math.ulp(0.0), math.inf, "more than 0 s"),
    "syphon_retry_interval": (1.0, 2 * _MINUTE, "1 s … 2 min"),
    "send_timeout": (math.ulp(0.0), math.inf, "more than 0 s"),
    "server_busy_wait": (0.0, 10 * _MINUTE, "0 … 10 min"),
}
_CHOICES: dict[str, tuple[str, ...]] = {"ping": ("message", "attach"), "late": ("deliver", "dead-letter")}
#: How a URI begins, also one of which `Path` has made a path.
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_HOST = re.compile(r"(?:\[[0-9a-fA-F:.%]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)(?::\d{1,5})?")


@dataclass(frozen=True, kw_only=True)
class PairingOptions:
    """How a pairing behaves. Durations are seconds or `timedelta`, and are seconds once they are in here."""

    #: How many backlog queues are used.
    backlog_queue_count: int = 10
    #: How long an entity may fail before it fails over; 0: at the first failure.
    failover_interval: Duration = 60.0
    #: How often an entity that is failed over is pinged, and how long a refused backlog queue is left alone.
    ping_primary_interval: Duration = 60.0
    #: How long one ping may take.
    ping_timeout: Duration = 120.0
    #: Whether this process also moves parked messages back.
    enable_syphon: bool = False
    #: Where that syphon keeps its journal; a folder of the user's state (~/.local/state/pairbus) if nothing is said.
    syphon_journal: str | Path | None = None
    #: The syphon's pause between two passes over one backlog queue.
    syphon_retry_interval: Duration = 1.0
    #: How long one send to either namespace may take.
    send_timeout: Duration = 60.0
    #: How long to wait before trying again when the service says that it is busy.
    server_busy_wait: Duration = 10.0
    #: `message`: a ping is a message that Service Bus takes and never delivers. `attach`: a link is opened and closed.
    ping: str = "message"
    #: What the syphon does with a message whose life ended in the backlog.
    late: str = "deliver"
    #: Called with each event, on a thread of its own.
    on_event: Callable[[Event], object] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        count: Any = self.backlog_queue_count
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise OptionError(f"backlog_queue_count must be a whole number, 1 or more, not {count!r}")
        for name, (least, most, said) in _RANGES.items():
            value = getattr(self, name)
            seconds = _seconds(value)
            if seconds is None or not math.isfinite(seconds) or not least <= seconds <= most:
                raise OptionError(f"{name} must be a duration of {said} (seconds or timedelta), not {value!r}")
            object.__setattr__(self, name, seconds)
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise OptionError(f"{name} must be one of {', '.join(allowed)}, not {getattr(self, name)!r}")
        syphon: Any = self.enable_syphon
        if not isinstance(syphon, bool):
            raise OptionError(f"enable_syphon must be True or False, not {syphon!r}")
        journal: Any = self.syphon_journal
        if journal is not None and (not isinstance(journal, (str, Path)) or not str(journal)):
            raise OptionError(f"syphon_journal must be the path of a folder, not {_shown(journal)}")
        if journal is not None and _URI.match(str(journal)):
            raise OptionError(
                f"syphon_journal must be a folder of this machine, or one mounted there, not {_shown(journal)}"
            )
        if self.on_event is not None and not callable(self.on_event):
            raise OptionError(f"on_event must be callable with one event, not {self.on_event!r}")

    def seconds(self, name: str) -> float:
        """One of the durations, as a number."""
        return float(getattr(self, name))


def _seconds(value: Any) -> float | None:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


class NoNameError(OptionError):
    """A host that does not contain its namespace's name, and none was given."""


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class Namespace:
    """A Service Bus namespace, and how to get in. Its `repr` shows no secret, and it cannot be pickled.

    `name` is needed where the host is an address or `localhost`, which name no namespace; `ca_file` where a private
    authority has signed the host's certificate. `credential` is one of `azure-identity`'s, an `AzureSasCredential` or
    an `AzureNamedKeyCredential`.
    """

    host: str = field(kw_only=False)
    credential: Any
    name: str = None  # type: ignore[assignment]  # found from the host, or refused
    ca_file: str | Path | None = None
    #: False: plain AMQP, as an emulator speaks it (`UseDevelopmentEmulator=true` in a connection string).
    use_tls: bool = True

    def __post_init__(self) -> None:
        given: Any = self.host
        host = given.strip().removeprefix("sb://").rstrip("/") if isinstance(given, str) else ""
        if not _HOST.fullmatch(host):
            raise OptionError(f"host must be a host name such as contoso.servicebus.windows.net, not {_shown(given)}")
        object.__setattr__(self, "host", host)
        name: Any = self.name
        if name is None:
            name = namespace_name(host)
        if name is None:
            raise NoNameError(
                f"the host {host} does not contain the namespace's name: pass it, Namespace(…, name='contoso'). The "
                "primary's is part of the backlog queues' paths, so all senders and the syphon must use the same"
            )
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise OptionError(f"name must be a label such as contoso (letters, digits, - _ .), not {_shown(name)}")
        object.__setattr__(self, "name", name.lower())
        credential: Any = self.credential
        get_token = None if isinstance(credential, type) else getattr(credential, "get_token", None)
        if not isinstance(credential, (AzureSasCredential, AzureNamedKeyCredential)) and (
            not callable(get_token) or inspect.iscoroutinefunction(get_token)
        ):
            kind = f"the class {credential.__name__}" if isinstance(credential, type) else type(credential).__name__
            raise OptionError(
                "credential must be one of azure-identity's credentials (not of azure.identity.aio), an "
                f"AzureSasCredential or an AzureNamedKeyCredential, not {kind}"
            )
        file: Any = self.ca_file
        if file is not None and not (isinstance(file, (str, Path)) and Path(file).is_file()):
            raise OptionError(f"ca_file must be a file with certificates in PEM form, not {_shown(file)}: no such file")
        if file is not None and not _has_certificate(Path(file)):
            raise OptionError(f"ca_file must be a file with certificates in PEM form; {_shown(file)} has none")

    @classmethod
    def from_connection_string(
        cls, connection_string: str, *, name: str | None = None, ca_file: str | Path | None = None
    ) -> Namespace:
        """A namespace from a connection string with a key (`SharedAccessKeyName`, `SharedAccessKey`) or a token
        (`SharedAccessSignature`)."""
        parts = _parts(connection_string)
        host = re.sub(r"^[a-z]+://", "", parts["endpoint"], flags=re.IGNORECASE).rstrip("/")
        if parts.get("entitypath"):
            raise OptionError(
                f"the connection string is for one entity (EntityPath={_shown(parts['entitypath'])}): a pairing needs "
                "one for the whole namespace"
            )
        credential: Any
        if parts.get("sharedaccesssignature"):
            credential = AzureSasCredential(parts["sharedaccesssignature"])
        elif parts.get("sharedaccesskeyname") and parts.get("sharedaccesskey"):
            credential = AzureNamedKeyCredential(parts["sharedaccesskeyname"], parts["sharedaccesskey"])
        else:
            raise OptionError(
                "the connection string has no credential: it needs SharedAccessKeyName and SharedAccessKey, or "
                "SharedAccessSignature"
            )
        emulator = parts.get("usedevelopmentemulator", "").lower() == "true"
        return cls(host, credential=credential, name=name, ca_file=ca_file, use_tls=not emulator)  # type: ignore[arg-type]

    def __copy__(self) -> Namespace:
        return self  # nothing of it can change

    def __deepcopy__(self, memo: Any) -> Namespace:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Namespace cannot be pickled: its key would be there for all to read. Make it where it is used, on Spark "
            "for example inside foreachPartition: Namespace.from_connection_string(os.environ['PRIMARY'])"
        )

    def __repr__(self) -> str:
        return f"Namespace({self.host!r}, name={self.name!r}, credential=<{type(self.credential).__name__}>)"


def refuse_same(primary: Namespace, secondary: Namespace) -> None:
    """Raise if the two are one."""
    if primary.host.lower() == secondary.host.lower():
        raise OptionError(
            f"primary and secondary are the same namespace, {primary.host}: when it is down, so is its backlog"
        )


def _parts(connection_string: Any) -> dict[str, str]:
    """The parts of a connection string by lower-cased name; errors quote nothing of it."""
    if not isinstance(connection_string, str) or not connection_string.strip():
        raise OptionError("the connection string is empty; it looks like Endpoint=sb://…;SharedAccessKeyName=…;…")
    parts: dict[str, str] = {}
    for piece in connection_string.strip().rstrip(";").split(";"):
        key, equals, value = piece.partition("=")
        if not equals:
            raise OptionError("the connection string is malformed: every part must be Name=value, with ';' between")
        parts[key.strip().lower()] = value.strip()
    if not parts.get("endpoint"):
        quoted = connection_string.strip()[0] in "\"'"
        hint = "; it begins with a quotation mark, which is not part of it" if quoted else ""
        raise OptionError(f"the connection string has no Endpoint=sb://…{hint}")
    return parts


def _has_certificate(file: Path) -> bool:
    try:
        return b"-----BEGIN CERTIFICATE-----" in file.read_bytes()
    except OSError as error:
        raise OptionError(f"ca_file {_shown(file)} cannot be read: {error.strerror}") from error


def _shown(value: Any) -> str:
    """What is refused, unless a secret may be in it: keys, signatures and connection strings have a `=`."""
    text = str(value) if isinstance(value, Path) else value
    shown = isinstance(text, (str, int, float, type(None))) and "=" not in repr(text) and len(repr(text)) < 200
    return repr(text) if shown else f"what was given (a {type(value).__name__}, not shown: it may hold a secret)"
