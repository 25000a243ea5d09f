"""The errors of pairbus, beside those of the SDK, which pass through unchanged.

    PairbusError
    ├── OptionError                  an option or a namespace is not what it must be (also a ValueError)
    │   └── ConfigError              a configuration has mistakes; `problems` names all of them
    ├── PairingError                 a pairing could not be made, or is used where it cannot be
    │   └── ProvisioningError        the secondary namespace has no backlog queue that could be used
    ├── PairedNamespaceClosedError   the pairing, or one half of it, is closed (also a ValueError, as in the SDK)
    ├── NotSupportedError            what a paired sender never had (also a NotImplementedError)
    ├── NotParkableError             a message that no backlog queue can hold (also the SDK's MessageSizeExceededError)
    └── BacklogUnavailableError      no backlog queue took the messages that it carries (also a ServiceBusError)

Decisions are taken from attributes, never from texts. An error that leaves messages behind carries them in `messages`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .sending.errors import BacklogUnavailableError, NotParkableError

__all__ = [
    "BacklogUnavailableError",
    "ConfigError",
    "NotParkableError",
    "NotSupportedError",
    "OptionError",
    "PairbusError",
    "PairedNamespaceClosedError",
    "PairingError",
    "ProvisioningError",
]


class PairbusError(Exception):
    """The root of everything that pairbus raises itself. It can be pickled, as a pool of processes does with errors."""

    def __reduce__(self) -> tuple[Any, ...]:
        kept = {name: value for name, value in self.__dict__.items() if name not in _NOT_PICKLED}
        return _rebuilt, (type(self), self.args), kept


#: What azure-core notes about where an error was raised.
_NOT_PICKLED = ("exc_type", "exc_value", "exc_traceback", "inner_exception", "continuation_token")


def _rebuilt(kind: type[PairbusError], args: tuple[Any, ...]) -> PairbusError:
    error = kind.__new__(kind)
    error.args = args
    return error


class OptionError(PairbusError, ValueError):
    """An option is refused: its name, its value and what would be right."""


class ConfigError(OptionError):
    """A configuration is refused: `problems` has one sentence for each mistake, `source` the file they are in."""

    def __init__(self, problems: Sequence[str], source: str | None = None) -> None:
        self.problems = tuple(problems)
        self.source = source
        told = self.problems[0] if len(self.problems) == 1 else f"{len(self.problems)} problems"
        listed = "".join(f"\n  - {problem}" for problem in self.problems) if len(self.problems) > 1 else ""
        super().__init__(f"{source or 'the configuration'}: {told}{listed}")


class PairingError(PairbusError):
    """A pairing could not be made, or is used where it cannot be."""


class ProvisioningError(PairingError):
    """No backlog queue could be found or made; `reasons` says why, queue by queue."""

    def __init__(self, message: str, reasons: Mapping[str, str]) -> None:
        super().__init__(message)
        self.reasons = dict(reasons)


class PairedNamespaceClosedError(PairbusError, ValueError):
    """The pairing is closed, or one of its halves is; both are named."""

    def __init__(self, message: str, *, primary: str, secondary: str) -> None:
        super().__init__(message)
        self.primary = primary
        self.secondary = secondary


class NotSupportedError(PairbusError, NotImplementedError):
    """Something that a paired sender does not do, and what to use instead."""


def __getattr__(name: str) -> Any:
    # Those that are the SDK's as well. It takes a fifth of a second to import, and Spark starts processes that need
    # nothing of it.
    if name in ("BacklogUnavailableError", "NotParkableError"):
        from .sending import errors

        return getattr(errors, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
