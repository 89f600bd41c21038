"""Time beyond the usual, charged to causes."""
