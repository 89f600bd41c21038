"""Models as files: found, fetched, read, and obeyed key by key."""
