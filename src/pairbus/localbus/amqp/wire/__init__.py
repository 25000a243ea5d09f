"""Filters on the bytes between a client and Proton, for the parts of AMQP and SASL that Proton does not do."""
