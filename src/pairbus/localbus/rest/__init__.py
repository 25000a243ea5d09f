"""The management REST API: HTTP, Atom feeds, entity descriptions, and WebSockets."""
