"""Figures about families of models."""
