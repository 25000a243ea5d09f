"""Service Bus's SQL filter language: syntax, properties, values, and the evaluation of filters and actions."""
