"""The memory of keys and values, on the device and on the host."""
