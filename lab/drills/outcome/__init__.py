"""What an episode leaves: its sealed label, and what clients measured."""
