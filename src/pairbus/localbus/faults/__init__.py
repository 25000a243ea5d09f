"""Fault injection: fault rules, their client, and added latency."""
