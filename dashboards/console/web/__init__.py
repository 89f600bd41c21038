"""The console's process: polling, pages, and who may call it."""
