"""Generated requests and almost-HTTP against a real server: nothing may break."""
