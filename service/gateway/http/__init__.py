"""Connections and bytes: accepting, limits, keys, browsers."""
