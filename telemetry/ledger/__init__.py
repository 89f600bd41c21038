"""The exact ledger: who took which nanosecond of a request."""
