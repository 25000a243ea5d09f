"""The journal: rows that are durable before a message is settled, and their fold into a ledger."""
