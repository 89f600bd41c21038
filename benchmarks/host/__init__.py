"""What watching the machine costs, and whether every pause is found."""
