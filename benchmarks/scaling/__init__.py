"""Does cost grow as it should, with batch, context, chunk and tokens held: see `__main__`."""
