"""AMQP: Proton's engine, the wire, connections, links and request nodes."""
