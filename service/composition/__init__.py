"""Where everything is put together. Nobody imports this package but the CLI."""
