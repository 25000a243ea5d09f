"""References to namespaces: the place of a connection string, or a host and the kind of its Entra credential."""

from __future__ import annotations

import importlib
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pairbus.domain.backlog import namespace_name
from pairbus.errors import ConfigError, OptionError
from pairbus.options import Namespace, NoNameError

from . import checks
from .checks import Problems

#: Kind of credential → azure-identity's class, and the arguments that take a client id.
CREDENTIALS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "default": ("DefaultAzureCredential", ("managed_identity_client_id", "workload_identity_client_id")),
        "managed-identity": ("ManagedIdentityCredential", ("client_id",)),
        "workload-identity": ("WorkloadIdentityCredential", ("client_id",)),
        "environment": ("EnvironmentCredential", ()),
        "azure-cli": ("AzureCliCredential", ()),
    }
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CLIENT_ID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
#: Parts that only a connection string has: a path with one of them is a pasted connection string.
_PASTED = re.compile(r"endpoint=|sharedaccess|;", re.IGNORECASE)
_RIGHT = (
    "env:NAME or file:/absolute/path (the value is not shown: it may hold a secret). Put the connection string "
    "into an environment variable and write env:NAME, or into a file and write file:PATH"
)


@dataclass(frozen=True, kw_only=True)
class NamespaceReference:
    """A namespace that each process looks up for itself; it holds no secret, and can be pickled, logged and shown.

    Parameters
    ----------
    connection
        The place of a connection string: `env:NAME` or `file:/absolute/path`.
    host, credential
        Instead of `connection`: the host name, and the kind of Entra credential, one of `CREDENTIALS`.
    client_id
        The client id of a managed or workload identity, if it is not the default one.
    name
        The namespace's name, if the host does not contain it, as an address or `localhost` does not.
    ca_file
        The absolute path of a file with the certificates of a private authority.

    Raises
    ------
    ConfigError
        One of these is not as described; `problems` names each.
    """

    connection: str | None = None
    host: str | None = None
    credential: str | None = None
    client_id: str | None = None
    name: str | None = None
    ca_file: str | None = None

    def __post_init__(self) -> None:
        problems: Problems = []
        final = _checked(self.to_mapping(), "the namespace", problems)
        if problems:
            raise ConfigError(problems)
        for key in ("host", "name"):
            object.__setattr__(self, key, final.get(key))

    @classmethod
    def read(cls, given: Any, where: str, problems: Problems) -> NamespaceReference | None:
        """Return the reference in one table of a configuration; None, and its problems, if there are any."""
        found: Problems = []
        values = checks.table(given, [field.name for field in fields(cls)], where, found)
        if isinstance(given, Mapping):
            _checked(values, where, found)
        problems += found
        return None if found else cls(**values)

    def to_mapping(self) -> dict[str, str]:
        """Return the values that are set, as `read` takes them."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    def resolve(self) -> Namespace:
        """Return the namespace, with the secret that this process finds under the reference now.

        Raises
        ------
        OptionError
            The reference leads nowhere on this machine, or to something that is no connection string.
        """
        if self.connection is None:
            assert self.host is not None
            return Namespace(self.host, credential=self._credential(), name=self.name, ca_file=self.ca_file)  # type: ignore[arg-type]
        found = _connection_string(self.connection)
        try:
            return Namespace.from_connection_string(found, name=self.name, ca_file=self.ca_file)
        except NoNameError:
            raise OptionError(
                f"{self.connection} on {socket.gethostname()}: its host does not contain the namespace's name: add "
                "name to this table (the primary's must be the one that senders use)"
            ) from None
        except OptionError as error:
            raise OptionError(f"{self.connection} on {socket.gethostname()}: {error}") from None

    def _credential(self) -> Any:
        kind, arguments = CREDENTIALS[self.credential or ""]
        subject = f"credential {self.credential!r} on {socket.gethostname()}"
        try:
            identity = importlib.import_module("azure.identity")
        except ModuleNotFoundError:
            raise OptionError(f"{subject} needs azure-identity, which is not installed there (extra: entra)") from None
        try:
            return getattr(identity, kind)(**dict.fromkeys(arguments, self.client_id) if self.client_id else {})
        except ValueError as error:
            raise OptionError(f"{subject} cannot be used: {error}") from None


def _connection_string(connection: str) -> str:
    kind, _, where = connection.partition(":")
    here = f"on {socket.gethostname()}"
    if kind == "env":
        if (value := os.environ.get(where)) is None:
            raise OptionError(f"{connection}: there is no environment variable {where} {here}")
    else:
        try:
            value = Path(where).read_text(encoding="utf-8-sig")
        except OSError as error:
            raise OptionError(f"{connection}: {where} cannot be read {here}: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise OptionError(f"{connection}: {where} {here} contains no text") from None
    if not value.strip():
        raise OptionError(f"{connection} is empty {here}; it must contain a connection string")
    if value.strip().startswith("{{"):
        raise OptionError(f"{connection} {here} contains a reference to a secret that Databricks did not resolve")
    return value.strip()


def _checked(values: Mapping[str, Any], where: str, problems: Problems) -> dict[str, Any]:
    """Return the values in their final form, checked as far as that needs no look-up."""
    final = dict(values)
    if values.get("name") is not None:
        final["name"] = checks.label(values["name"], f"{where} name", problems)
    file = values.get("ca_file")
    if file is not None and not (isinstance(file, str) and os.path.isabs(file)):
        problems.append(f"{where} ca_file must be the absolute path of a file, not {checks.shown(file)}")
    if "connection" in values:
        _check_connection(values, where, problems)
    elif "host" in values:
        final["host"] = checks.host(values["host"], f"{where} host", problems)
        if final["host"] is not None and values.get("name") is None:
            final["name"] = namespace_name(final["host"])
            if final["name"] is None:
                why = f"the host {final['host']} does not contain it; it must be the one that senders use"
                problems.append(f"{where} name is missing: {why}")
        _check_credential(values, where, problems)
    else:
        problems.append(f'{where} needs connection = "env:NAME", or host and credential')
    return final


def _check_connection(values: Mapping[str, Any], where: str, problems: Problems) -> None:
    for key in ("host", "credential", "client_id"):
        if key in values:
            problems.append(f"{where} has connection and {key}: the connection string contains host and credential")
    given = values["connection"]
    kind, _, rest = given.partition(":") if isinstance(given, str) else ("", "", "")
    if kind == "env" and _VARIABLE.fullmatch(rest):
        return
    if kind == "file" and os.path.isabs(rest) and not _PASTED.search(rest):
        return
    problems.append(f"{where} connection must be {_RIGHT}")


def _check_credential(values: Mapping[str, Any], where: str, problems: Problems) -> None:
    credential, client_id = values.get("credential"), values.get("client_id")
    # Neither is shown: a user may paste a secret where a kind of credential belongs.
    if credential is None:
        problems.append(f"{where} credential is missing; it must be one of {', '.join(CREDENTIALS)}")
    elif not isinstance(credential, str) or credential not in CREDENTIALS:
        hint = checks.nearest(credential, CREDENTIALS)
        problems.append(f"{where} credential must be one of {', '.join(CREDENTIALS)}, not its value (not shown){hint}")
    elif client_id is not None and not CREDENTIALS[credential][1]:
        problems.append(f"{where} client_id has no meaning with credential {credential!r}")
    if client_id is not None and not (isinstance(client_id, str) and _CLIENT_ID.fullmatch(client_id)):
        problems.append(f"{where} client_id must be the GUID of an identity, not its value (not shown)")
