"""A stand-in for the credentials of azure-identity."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

from azure.core.credentials import AccessToken


class EntraCredential:
    """A credential as those of azure-identity are: it has `get_token`, and gives what looks like a JWT."""

    def __init__(self) -> None:
        self.scopes: list[tuple[str, ...]] = []

    def get_token(self, *scopes: str, **kwargs: Any) -> AccessToken:
        self.scopes.append(scopes)
        parts = ({"alg": "none"}, {"aud": "https://servicebus.azure.net", "exp": int(time.time()) + 3600})
        coded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
        return AccessToken(f"{coded[0]}.{coded[1]}.signature", int(time.time()) + 3600)
