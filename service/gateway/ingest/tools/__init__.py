"""Functions that a chat may call: their types in a body, and what is made of them."""
