"""Entity logic without I/O: queues, sessions, topics, event hubs and their messages."""
