"""The broker: the catalog of entities, message routing, and the SQLite store."""
