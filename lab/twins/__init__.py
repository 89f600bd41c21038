"""Virtual-time twins: whole lives of a server with one thing wrong for a while, as facts only."""
