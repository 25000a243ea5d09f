"""The text of an error for logs: one line, without secrets, and not too long."""

from __future__ import annotations

import pytest

from pairbus.runtime.redaction import describe_error


def test_an_error_is_its_class_and_its_text_in_one_line() -> None:
    """Lines and runs of blanks become single blanks; an error without a text is its class."""
    assert describe_error(ValueError("a\n  b\tc ")) == "ValueError: a b c"
    assert describe_error(KeyError()) == "KeyError"


@pytest.mark.parametrize("name", ["sig", "skn", "SharedAccessKey", "SharedAccessSignature", "token", "SIG"])
@pytest.mark.parametrize("end", ["&se=1", ";x", " rest", "'", ""])
def test_the_value_of_a_secret_is_replaced(name: str, end: str) -> None:
    """Its name and the text after it stay."""
    assert describe_error(ValueError(f"at {name}=s3cr3t%2f{end}")) == f"ValueError: at {name}=***{end}".rstrip()


@pytest.mark.parametrize("token", ["eyJhbGci.eyJpc3M.c2ln-_x", "eyJhbGci.eyJpc3M"])
def test_a_bearer_token_is_replaced(token: str) -> None:
    """Wherever it stands, and also without its signature."""
    assert describe_error(ValueError(f"Bearer {token} was refused")) == "ValueError: Bearer *** was refused"


def test_a_name_that_only_ends_like_a_secret_stays() -> None:
    """The entity's settings are worth reading."""
    assert describe_error(ValueError("design=x tokens=2")) == "ValueError: design=x tokens=2"


def test_a_long_text_is_cut() -> None:
    """After five hundred characters, and only once its secrets are replaced."""
    assert describe_error(ValueError("x" * 600)) == "ValueError: " + "x" * 500
    assert "s3cr3t" not in describe_error(ValueError("x" * 490 + " sig=s3cr3t"))
