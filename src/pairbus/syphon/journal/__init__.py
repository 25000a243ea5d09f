"""The write-ahead journal of outcomes: its files, the storage that keeps them, and folding it into the ledger."""
