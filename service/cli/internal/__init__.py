"""Commands that the server starts its own processes with; people do not call them."""
