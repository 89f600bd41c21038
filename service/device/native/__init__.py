"""The decoder in C++: a whole step in one call."""
