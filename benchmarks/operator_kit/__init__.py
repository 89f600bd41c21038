"""The operator's kit, shown against real servers: one program for each part."""
