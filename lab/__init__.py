"""What exercises a server: simulation, replay, drills, load. No part of the service itself."""
