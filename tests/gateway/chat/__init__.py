"""Chats and responses: what reaches the template, reasoning, typed items."""
