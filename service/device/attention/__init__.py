"""Attention back ends behind one interface."""
