"""The cost of paired namespaces: `forecast` estimates it; `PairedNamespace.status().operations` counts it."""

from .domain.cost import Forecast, Line, forecast, operations_of

__all__ = ["Forecast", "Line", "forecast", "operations_of"]
