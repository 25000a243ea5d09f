"""Tokens for `$cbs`: who may do what with an entity, for every kind of credential that a `Namespace` may have."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
from typing import Any, NamedTuple
from urllib.parse import quote_plus

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

from pairbus.options import Namespace

SAS_TYPE = "servicebus.windows.net:sastoken"
JWT_TYPE = "jwt"
_SCOPES = {False: "https://servicebus.azure.net/.default", True: "https://eventhubs.azure.net/.default"}
#: How long a token that is made here is good for, and when it is renewed before its end.
LIFETIME_SECONDS = 3600.0
_EXPIRY = re.compile(r"(?:^|[&\s])se=(\d+)")


class Token(NamedTuple):
    """What is put to `$cbs`, and when it ends, in seconds since 1970. Never printed: `repr` hides the text."""

    text: str
    kind: str
    ends_at: float

    def __repr__(self) -> str:
        return f"Token({self.kind}, ends_at={self.ends_at:.0f})"


def audience_of(namespace: Namespace, path: str) -> str:
    """What a token is for."""
    return f"sb://{namespace.host}/{path}"


def token_for(namespace: Namespace, path: str, *, event_hubs: bool = False) -> Token:
    """A token for one entity; asks the credential, which may take a while: not for the event loop."""
    credential: Any = namespace.credential
    now = time.time()
    if isinstance(credential, AzureNamedKeyCredential):
        return _signed(audience_of(namespace, path), *credential.named_key, now + LIFETIME_SECONDS)
    if isinstance(credential, AzureSasCredential):
        given = credential.signature
        ends = _EXPIRY.search(given)
        return Token(given, SAS_TYPE, float(ends.group(1)) if ends else now + LIFETIME_SECONDS)
    # Imported here, since it takes the SDK along. A credential that hangs is asked once, not by every link anew.
    from pairbus.runtime.credential import deadline_credential

    found = deadline_credential(credential).get_token(_SCOPES[event_hubs])
    return Token(str(found.token), JWT_TYPE, float(found.expires_on))


def _signed(audience: str, name: str, key: str, ends_at: float) -> Token:
    resource, expiry = quote_plus(audience), int(ends_at)
    digest = hmac.new(key.encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256).digest()
    signature = quote_plus(base64.b64encode(digest))
    # What it says is what the service goes by: whole seconds.
    return Token(f"SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={name}", SAS_TYPE, float(expiry))
