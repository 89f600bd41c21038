"""Weights as they are stored, and the products with them."""
