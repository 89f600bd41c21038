"""How facts get from lanes to folds.

- `pump`: drains lanes into folds, on a thread of its own.
- `isolation`: keeps a fold that raises from stopping the others.
- `fair_lock`: a lock that readers and the pump take in turns.
"""
