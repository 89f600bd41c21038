"""The pure core: scheduler, block pool, admission, loop; no I/O, no torch, no own clock."""
