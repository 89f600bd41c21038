"""The requests of a bench: their arrival times, lengths and prompts."""
