"""The decoder in C++: a whole step in one call. Compiled on this machine at first use."""
