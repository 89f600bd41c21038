"""One rank's part of a model, and what ranks exchange within a step."""
