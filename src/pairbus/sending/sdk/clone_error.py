"""Copies of the SDK's errors, so that each caller is raised one of its own."""

from __future__ import annotations

import copy


def clone_error(error: Exception) -> Exception:
    """Return an equal error for another caller, since tracebacks pile up on a shared one; itself if that fails."""
    try:
        twin: Exception = type(error)(message=str(error))  # type: ignore[call-arg]
    except Exception:
        try:
            twin = copy.copy(error)
        except Exception:
            return error
    for name in ("_condition", "_status_code", "inner_exception", "status_code"):
        if hasattr(error, name):
            setattr(twin, name, getattr(error, name))
    twin.__cause__ = error.__cause__
    return twin
