"""A namespace told without its secret: where the connection string is, or a host and which Entra credential to use."""

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

from azure.core.credentials import AzureNamedKeyCredential

from pairbus.domain.backlog import namespace_name
from pairbus.errors import ConfigError, OptionError
from pairbus.options import Namespace, NoNameError

from . import checks as checking
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
#: What only a connection string has; a path with one of these is one.
_PASTED = re.compile(r"endpoint=|sharedaccess|;", re.IGNORECASE)
_RIGHT = (
    "env:NAME or file:/absolute/path (what is there is not shown: it may hold a secret). Put the connection string "
    "into an environment variable and write env:NAME, or into a file and write file:PATH"
)
_NOBODY = AzureNamedKeyCredential("nobody", "nothing")


@dataclass(frozen=True, kw_only=True)
class NamespaceReference:
    """A namespace that any process can look up for itself; it holds no secret, and can be pickled, logged and shown.

    Either `connection`, which says where a connection string is (`env:NAME`, `file:/absolute/path`), or `host` and the
    kind of `credential`. `name` is found from the host if that says one; an address or `localhost` does not.
    """

    connection: str | None = None
    host: str | None = None
    credential: str | None = None
    client_id: str | None = None
    name: str | None = None
    ca_file: str | None = None

    def __post_init__(self) -> None:
        problems: Problems = []
        _check(self._given(), "the namespace", problems)
        if problems:
            raise ConfigError(problems)
        if self.host is not None:
            object.__setattr__(self, "host", _tidy(self.host))
        if (name := self.name_or_none()) is not None:
            object.__setattr__(self, "name", name.lower())

    @classmethod
    def read(cls, given: Any, where: str, problems: Problems) -> NamespaceReference | None:
        """The reference in one table of a configuration; nothing if there is a problem with it."""
        found: Problems = []
        values = checking.table(given, [field.name for field in fields(cls)], where, found)
        if isinstance(given, Mapping):
            _check(values, where, found)
        problems += found
        return None if found else cls(**values)

    def to_mapping(self) -> dict[str, str]:
        """What is set, as `read` takes it."""
        return self._given()

    def name_or_none(self) -> str | None:
        """The namespace's name if it can be told without looking up a secret."""
        return self.name or (namespace_name(self.host) if self.host is not None else None)

    def resolve(self) -> Namespace:
        """The namespace itself, with what this process finds under the reference now."""
        if self.connection is None:
            assert self.host is not None
            return Namespace(self.host, credential=self._credential(), name=self.name, ca_file=self.ca_file)  # type: ignore[arg-type]
        found = self._looked_up(self.connection)
        try:
            return Namespace.from_connection_string(found, name=self.name, ca_file=self.ca_file)
        except NoNameError:
            raise OptionError(
                f"{self.connection} on {socket.gethostname()}: its host does not contain the namespace's name: add "
                "name to this table (the primary's must be the one that senders use)"
            ) from None
        except OptionError as error:
            raise OptionError(f"{self.connection} on {socket.gethostname()}: {error}") from None

    def _looked_up(self, connection: str) -> str:
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
                raise OptionError(f"{connection}: {where} {here} holds no text") from None
        if not value.strip():
            raise OptionError(f"{connection} is empty {here}; it must hold a connection string")
        if value.strip().startswith("{{"):
            raise OptionError(f"{connection} {here} holds a reference to a secret that Databricks did not resolve")
        return value.strip()

    def _credential(self) -> Any:
        kind, takes = CREDENTIALS[self.credential or ""]
        told = f"credential {self.credential!r} on {socket.gethostname()}"
        try:
            identity = importlib.import_module("azure.identity")
        except ModuleNotFoundError:
            raise OptionError(f"{told} needs azure-identity, which is not installed there (extra: entra)") from None
        try:
            return getattr(identity, kind)(**dict.fromkeys(takes, self.client_id) if self.client_id else {})
        except ValueError as error:
            raise OptionError(f"{told} cannot be used: {error}") from None

    def _given(self) -> dict[str, str]:
        return {key: value for key, value in asdict(self).items() if value is not None}


def _tidy(host: str) -> str:
    return host.strip().removeprefix("sb://").rstrip("/")


def _check(values: Mapping[str, Any], where: str, problems: Problems) -> None:
    """Everything that can be told without looking anything up."""
    if "name" in values:
        _check_namespace({"host": "any.example", "name": values["name"]}, where, problems)
    file = values.get("ca_file")
    if file is not None and not (isinstance(file, str) and os.path.isabs(file)):
        problems.append(f"{where} ca_file must be the absolute path of a file, not {checking.shown(file)}")
    if "connection" in values:
        _check_connection(values, where, problems)
    elif "host" in values:
        _check_host(values, where, problems)
    else:
        problems.append(f'{where} needs connection = "env:NAME", or host and credential')


def _check_connection(values: Mapping[str, Any], where: str, problems: Problems) -> None:
    for key in ("host", "credential", "client_id"):
        if key in values:
            problems.append(f"{where} has connection and {key}: the connection string says both host and credential")
    given = values["connection"]
    kind, _, rest = given.partition(":") if isinstance(given, str) else ("", "", "")
    if kind == "env" and _VARIABLE.fullmatch(rest):
        return
    if kind == "file" and os.path.isabs(rest) and not _PASTED.search(rest):
        return
    problems.append(f"{where} connection must be {_RIGHT}")


def _check_host(values: Mapping[str, Any], where: str, problems: Problems) -> None:
    host, credential, client_id = values["host"], values.get("credential"), values.get("client_id")
    well_formed = _check_namespace({"host": host, "name": "any"}, where, problems)
    if well_formed and "name" not in values and namespace_name(_tidy(host)) is None:
        problems.append(
            f"{where} name is missing: the host {_tidy(host)} says none; it must be the one that senders use"
        )
    # Neither of these is shown: where a credential is asked for, somebody will paste one.
    if credential is None:
        problems.append(f"{where} credential is missing; it must be one of {', '.join(CREDENTIALS)}")
    elif not isinstance(credential, str) or credential not in CREDENTIALS:
        hint = checking.nearest(credential, CREDENTIALS)
        problems.append(
            f"{where} credential must be one of {', '.join(CREDENTIALS)}, not what is there (not shown){hint}"
        )
    elif client_id is not None and not CREDENTIALS[credential][1]:
        problems.append(f"{where} client_id has no meaning with credential {credential!r}")
    if client_id is not None and not (isinstance(client_id, str) and _CLIENT_ID.fullmatch(client_id)):
        problems.append(f"{where} client_id must be the GUID of an identity, not what is there (not shown)")


def _check_namespace(values: dict[str, Any], where: str, problems: Problems) -> bool:
    """Let `Namespace` itself say what a host or a name must be."""
    try:
        Namespace(**values, credential=_NOBODY)
    except OptionError as error:
        problems.append(f"{where} {error}")
        return False
    return True
