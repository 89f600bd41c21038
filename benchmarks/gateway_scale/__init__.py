"""What the gateway costs at a steady rate of tokens: see `__main__`."""
