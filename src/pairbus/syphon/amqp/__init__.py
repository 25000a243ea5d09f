"""Raw AMQP on Proton: connections, links, requests and tokens."""
