"""What is sent: when, how long, which words."""
