"""Error texts for logs and messages: one line, without secrets."""

from __future__ import annotations

import re

_SECRET = re.compile(r"(?i)\b(sig|skn|SharedAccessKey|SharedAccessSignature|token)=[^&;\s'\"]+")
_JWT = re.compile(r"\beyJ[\w-]+\.[\w-]+(?:\.[\w-]*)?")


def describe_error(error: BaseException) -> str:
    """Return an error's class and text in one line, with keys, signatures and tokens replaced by ***."""
    text = _JWT.sub("***", _SECRET.sub(r"\1=***", " ".join(str(error).split())))[:500]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
