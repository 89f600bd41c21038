"""What the console shows, without any drawing."""
