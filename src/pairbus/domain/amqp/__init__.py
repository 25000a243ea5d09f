"""Encoded AMQP 1.0 messages: their sections, their types, and the codec for single values."""
