"""Parts that every package needs and none owns: bounded calls, credentials, error texts without secrets."""
