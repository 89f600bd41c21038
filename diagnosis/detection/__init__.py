"""What is counted, what is usual, and when it began to hurt."""
