"""How blocks of a prompt get from one engine to another."""
