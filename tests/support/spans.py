"""A tracer of azure.core that keeps its spans."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from azure.core.settings import settings


class Span:
    """A tracer's span with all that azure.core uses, and no more."""

    made: ClassVar[list[Span]] = []

    def __init__(self, span: Any = None, name: str = "", links: Any = (), **options: Any) -> None:
        self.name = name
        self.links = list(links)
        self.attributes: dict[str, Any] = {}
        self.made.append(self)

    def __enter__(self) -> Span:
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def to_header(self) -> dict[str, str]:
        return {"traceparent": f"00-{id(self):032x}-1-01"}

    def add_attribute(self, key: str, value: Any) -> None:
        self.attributes[key] = value


@contextmanager
def traced() -> Iterator[list[Span]]:
    """Give the SDKs a tracer for the length of a block, and yield the spans that it makes."""
    Span.made.clear()
    settings.tracing_implementation = Span  # type: ignore[assignment]
    try:
        yield Span.made
    finally:
        settings.tracing_implementation.unset_value()
