"""One module for each symptom: `found(window)` says whether it is there, by what, and what it
costs. None of them looks at another; which of two that share their harm is named first is decided
in `ranking`."""
