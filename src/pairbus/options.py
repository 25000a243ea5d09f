"""A namespace with its credential, and the options of a pairing; no `repr` of them shows a secret."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

from .config import checks
from .config.checks import LATE, POSITIVE, Problems, Range
from .domain.backlog import namespace_name
from .errors import OptionError

if TYPE_CHECKING:
    from .sending.events import Event

Duration = float | timedelta

_MINUTE = 60.0
_RANGES = {
    "failover_interval": Range(0.0, 60 * _MINUTE, "0 … 60 min"),
    "ping_primary_interval": Range(1.0, 30 * _MINUTE, "1 s … 30 min"),
    "ping_timeout": POSITIVE,
    "syphon_retry_interval": Range(1.0, 2 * _MINUTE, "1 s … 2 min"),
    "send_timeout": POSITIVE,
    "server_busy_wait": Range(0.0, 10 * _MINUTE, "0 … 10 min"),
}
_CHOICES: dict[str, tuple[str, ...]] = {"ping": ("message", "attach"), "late": LATE}


@dataclass(frozen=True, kw_only=True)
class PairingOptions:
    """The options of a pairing, checked when they are made.

    Durations are given in seconds or as `timedelta`, and are stored in seconds. An option that is out of its range or
    of another type raises `OptionError`, which names it.
    """

    #: The number of backlog queues.
    backlog_queue_count: int = 10
    #: The time for which an entity must fail before it fails over; 0: the first failure fails it over.
    failover_interval: Duration = 60.0
    #: The pause between two pings of a failed-over entity, and the time for which a refused backlog queue is not used.
    ping_primary_interval: Duration = 60.0
    #: The longest that one ping may take.
    ping_timeout: Duration = 120.0
    #: Also move parked messages back, in this process.
    enable_syphon: bool = False
    #: The folder of that syphon's journal; None: one in the user's state folder (~/.local/state/pairbus).
    syphon_journal: str | Path | None = None
    #: That syphon's pause between two passes over one backlog queue.
    syphon_retry_interval: Duration = 1.0
    #: The longest that one send to either namespace may take.
    send_timeout: Duration = 60.0
    #: The pause before the next attempt when the service is busy.
    server_busy_wait: Duration = 10.0
    #: `message`: a ping is a message that Service Bus accepts and never delivers. `attach`: it opens and closes a link.
    ping: str = "message"
    #: The treatment of a message whose time to live ended in the backlog: `deliver` or `dead-letter`.
    late: str = "deliver"
    #: A function that is called with each event, on a thread of its own.
    on_event: Callable[[Event], object] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        problems: Problems = []
        checks.whole(self.backlog_queue_count, 1, None, "backlog_queue_count", problems)
        for name, allowed in _RANGES.items():
            object.__setattr__(self, name, checks.duration(getattr(self, name), allowed, name, problems))
        for name, words in _CHOICES.items():
            checks.choice(getattr(self, name), words, name, problems)
        checks.flag(self.enable_syphon, "enable_syphon", problems)
        checks.local_folder(self.syphon_journal, "syphon_journal", problems)
        on_event: Any = self.on_event
        if on_event is not None and not callable(on_event):
            problems.append(f"on_event must be callable with one event, not {on_event!r}")
        checks.raise_first(problems)

    def seconds(self, name: str) -> float:
        """Return one of the durations as a number of seconds."""
        return float(getattr(self, name))


class NoNameError(OptionError):
    """A host that does not contain its namespace's name, and no name beside it."""


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class Namespace:
    """A Service Bus namespace and the credential for it.

    Its `repr` shows no secret, and it cannot be pickled.

    Parameters
    ----------
    host
        The host name, such as contoso.servicebus.windows.net.
    credential
        One of `azure-identity`'s synchronous credentials, an `AzureSasCredential` or an `AzureNamedKeyCredential`.
    name
        The namespace's name, if the host does not contain it, as an address or `localhost` does not.
    ca_file
        A file with the certificates of the authority that signed the host's, if that is a private one.
    use_tls
        False for plain AMQP, as an emulator uses it (`UseDevelopmentEmulator=true` in a connection string).

    Raises
    ------
    OptionError
        One of these is not as described; the error names it, and shows no secret.
    """

    host: str = field(kw_only=False)
    credential: Any
    name: str = None  # type: ignore[assignment]  # replaced by the name in the host
    ca_file: str | Path | None = None
    use_tls: bool = True

    def __post_init__(self) -> None:
        problems: Problems = []
        host = checks.host(self.host, "host", problems)
        checks.raise_first(problems)
        assert host is not None
        name: Any = self.name
        if name is None:
            name = namespace_name(host)
        if name is None:
            raise NoNameError(
                f"the host {host} does not contain the namespace's name: pass it, Namespace(…, name='contoso'). The "
                "primary's is part of the backlog queues' paths, so all senders and the syphon must use the same"
            )
        object.__setattr__(self, "host", host)
        object.__setattr__(self, "name", checks.label(name, "name", problems))
        _check_credential(self.credential, problems)
        _check_certificates(self.ca_file, problems)
        checks.raise_first(problems)

    @classmethod
    def from_connection_string(
        cls, connection_string: str, *, name: str | None = None, ca_file: str | Path | None = None
    ) -> Namespace:
        """Return the namespace of a connection string.

        Parameters
        ----------
        connection_string
            A string for the whole namespace, with a key (`SharedAccessKeyName`, `SharedAccessKey`) or a signature
            (`SharedAccessSignature`).
        name, ca_file
            See `Namespace`.

        Raises
        ------
        OptionError
            The string is malformed, or is for one entity; the error quotes no secret.
        """
        parts = _parts(connection_string)
        host = re.sub(r"^[a-z]+://", "", parts["endpoint"], flags=re.IGNORECASE).rstrip("/")
        if parts.get("entitypath"):
            raise OptionError(
                f"the connection string is for one entity (EntityPath={checks.shown(parts['entitypath'])}): a pairing "
                "needs one for the whole namespace"
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
        return self  # it is immutable

    def __deepcopy__(self, memo: Any) -> Namespace:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Namespace cannot be pickled: the pickle would contain its key. Make it where it is used, on Spark "
            "for example inside foreachPartition: Namespace.from_connection_string(os.environ['PRIMARY'])"
        )

    def __repr__(self) -> str:
        return f"Namespace({self.host!r}, name={self.name!r}, credential=<{type(self.credential).__name__}>)"


def refuse_same(primary: Namespace, secondary: Namespace) -> None:
    """Raise `OptionError` if primary and secondary are one namespace."""
    if primary.host.lower() == secondary.host.lower():
        raise OptionError(
            f"primary and secondary are the same namespace, {primary.host}: when it is down, so is its backlog"
        )


def _parts(connection_string: Any) -> dict[str, str]:
    """Return the parts of a connection string by lower-cased name; errors quote none of its values."""
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


def _check_credential(credential: Any, problems: Problems) -> None:
    if isinstance(credential, AzureNamedKeyCredential):
        if not all(credential.named_key) or any(";" in part for part in credential.named_key):
            problems.append("credential must be an AzureNamedKeyCredential with a name and a key, both without ';'")
        return
    if isinstance(credential, AzureSasCredential):
        return
    get_token = None if isinstance(credential, type) else getattr(credential, "get_token", None)
    if not callable(get_token) or inspect.iscoroutinefunction(get_token):
        kind = f"the class {credential.__name__}" if isinstance(credential, type) else type(credential).__name__
        problems.append(
            "credential must be one of azure-identity's credentials (not of azure.identity.aio), an "
            f"AzureSasCredential or an AzureNamedKeyCredential, not {kind}"
        )


def _check_certificates(file: Any, problems: Problems) -> None:
    if file is None:
        return
    right = "ca_file must be a file with certificates in PEM form"
    if not isinstance(file, (str, Path)) or not Path(file).is_file():
        problems.append(f"{right}, not {checks.shown(file)}: no such file")
        return
    try:
        if b"-----BEGIN CERTIFICATE-----" not in Path(file).read_bytes():
            problems.append(f"{right}; {checks.shown(file)} has none")
    except OSError as error:
        problems.append(f"ca_file {checks.shown(file)} cannot be read: {error.strerror}")
