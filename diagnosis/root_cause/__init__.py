"""The scheduler run again, with one difference undone at a time."""
