"""The versions of Microsoft's SDKs that pairbus was tried with, and the error for one that lacks a private name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

#: Distribution -> the newest version on which the tests that pin private names have passed.
TRIED = {"azure-servicebus": "7.15.0", "azure-eventhub": "5.15.1"}


@contextmanager
def private_names_of(distribution: str) -> Iterator[None]:
    """Turn a missing private name into an ImportError that names the version tried and the one installed."""
    try:
        yield
    except (ImportError, AttributeError) as error:
        try:
            installed = version(distribution)
        except PackageNotFoundError:
            raise error from None
        tried = TRIED[distribution]
        raise ImportError(
            f"pairbus was tried with {distribution} {tried}; this is {installed}, which lacks a private name that "
            f"pairbus uses: {error}. Install {distribution}=={tried}"
        ) from error
