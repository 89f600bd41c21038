"""Servers with GPUs, in virtual time."""
