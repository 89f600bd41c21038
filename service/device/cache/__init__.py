"""Pages of keys and values, on the device (`kv_cache`) and in host memory (`cpu_pool`). Which block
lies where is decided by the engine."""
