"""The engine process: its frames to the gateway, its heartbeat, its main loop."""
