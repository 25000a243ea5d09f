"""Parts that every package needs: calls with a deadline, credentials, backoff, the administration client, redaction."""
