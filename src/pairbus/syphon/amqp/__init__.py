"""Raw AMQP on Proton: connections, links, requests with responses, and tokens."""
