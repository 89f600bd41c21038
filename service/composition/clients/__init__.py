"""What serves clients: in the main process, or in several gateway processes beside it."""
