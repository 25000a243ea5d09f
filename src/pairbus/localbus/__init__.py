"""localbus: an embedded Service Bus for tests, demos and fault injection, that the official SDKs talk to.

`LocalBus` starts it as a process of its own; nothing else of pairbus imports this package.
"""

from .errors import LocalBusError
from .process import LocalBus

__all__ = ["LocalBus", "LocalBusError"]
