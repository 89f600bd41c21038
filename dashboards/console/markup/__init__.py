"""Pure functions from the model to HTML; every text from outside is escaped."""
