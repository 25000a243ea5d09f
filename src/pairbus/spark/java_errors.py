"""Java's exceptions in one line."""

from __future__ import annotations

from py4j.protocol import Py4JJavaError


def root_cause(error: BaseException) -> str:
    """Return an error's class and message in one line; for an exception of Java's, those of its root cause."""
    if isinstance(error, Py4JJavaError):
        cause = error.java_exception
        while (deeper := cause.getCause()) is not None:
            cause = deeper
        return f"{cause.getClass().getSimpleName()}: {cause.getMessage()}".partition("\n")[0]
    return f"{type(error).__name__}: {error}".partition("\n")[0]
