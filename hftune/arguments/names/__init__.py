"""Names of other tools: what each means, what becomes of it here, and how its values are translated."""

from hftune.arguments.names.row import Ask, Row
from hftune.arguments.names.table import TABLE

__all__ = ["TABLE", "Ask", "Row"]
