"""The kinds of storage that journals are kept on."""

from tests.support.journal_rows import root

__all__ = ["root"]
