"""Virtual time: the production scheduler on a simulated device."""
