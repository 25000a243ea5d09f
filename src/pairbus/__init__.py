"""Paired namespaces for Azure Service Bus, and localbus, a Service Bus that runs on any laptop."""

__version__ = "0.1.0"
