"""References that are written from the code, so that they cannot say anything else than it does."""
