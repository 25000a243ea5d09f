"""The errors of pairbus. Those of the SDK pass through unchanged.

    PairbusError
    ├── OptionError                  an option or a namespace is out of its range or malformed (also a ValueError)
    │   └── ConfigError              a configuration has mistakes; `problems` names all of them
    ├── PairingError                 a pairing could not be made, or is used in a way that is not possible
    │   └── ProvisioningError        the secondary namespace has no usable backlog queue
    ├── PairedNamespaceClosedError   the pairing, or one half of it, is closed (also a ValueError, as in the SDK)
    ├── NotSupportedError            an operation that a paired sender does not have (also a NotImplementedError)
    ├── NotParkableError             a message that no backlog queue can hold (also the SDK's MessageSizeExceededError)
    └── BacklogUnavailableError      no backlog queue accepted the messages (also a ServiceBusError)

The attributes of an error are for decisions, its text for readers. An error that leaves messages unsent carries them in
`messages`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .sending.errors import BacklogUnavailableError, NotParkableError

__all__ = [
    "BacklogUnavailableError", "ConfigError", "NotParkableError", "NotSupportedError", "OptionError", "PairbusError",
    "PairedNamespaceClosedError", "PairingError", "ProvisioningError",
]  # fmt: skip


class PairbusError(Exception):
    """The base class of all errors of pairbus. They can be pickled, as a pool of processes does with errors."""

    def __reduce__(self) -> tuple[Any, ...]:
        kept = {name: value for name, value in self.__dict__.items() if name not in _NOT_PICKLED}
        return _rebuilt, (type(self), self.args), kept


#: Attributes that azure-core adds for the place where an error was raised.
_NOT_PICKLED = ("exc_type", "exc_value", "exc_traceback", "inner_exception", "continuation_token")


def _rebuilt(kind: type[PairbusError], args: tuple[Any, ...]) -> PairbusError:
    error = kind.__new__(kind)
    error.args = args
    return error


class OptionError(PairbusError, ValueError):
    """A refused option; the text contains its name, its value and the values that are allowed."""


class ConfigError(OptionError):
    """A refused configuration.

    Attributes
    ----------
    problems
        One sentence for each mistake.
    source
        The path of the configuration's file; None if it does not come from a file.
    """

    def __init__(self, problems: Sequence[str], source: str | None = None) -> None:
        self.problems = tuple(problems)
        self.source = source
        summary = self.problems[0] if len(self.problems) == 1 else f"{len(self.problems)} problems"
        listed = "".join(f"\n  - {problem}" for problem in self.problems) if len(self.problems) > 1 else ""
        super().__init__(f"{source or 'the configuration'}: {summary}{listed}")


class PairingError(PairbusError):
    """A pairing that could not be made, or is used in a way that is not possible, such as after a fork."""


class ProvisioningError(PairingError):
    """The secondary namespace has no usable backlog queue; `reasons` maps each queue's path to the reason."""

    def __init__(self, message: str, reasons: Mapping[str, str]) -> None:
        super().__init__(message)
        self.reasons = dict(reasons)


class PairedNamespaceClosedError(PairbusError, ValueError):
    """A use of a closed pairing, or of one of which a half is closed; `primary` and `secondary` are their hosts."""

    def __init__(self, message: str, *, primary: str, secondary: str) -> None:
        super().__init__(message)
        self.primary = primary
        self.secondary = secondary


class NotSupportedError(PairbusError, NotImplementedError):
    """An operation that a paired sender does not have; the text names the alternative."""


def __getattr__(name: str) -> Any:
    # These are errors of the SDK as well. Its import takes a fifth of a second, and Spark starts processes without it.
    if name in ("BacklogUnavailableError", "NotParkableError"):
        from .sending import errors

        return getattr(errors, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
