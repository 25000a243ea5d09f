"""What paired namespaces cost: `forecast` tells before, `PairedNamespace.status().operations` counts as it happens."""

from .domain.cost import Forecast, Line, forecast, operations_of

__all__ = ["Forecast", "Line", "forecast", "operations_of"]
