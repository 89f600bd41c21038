"""The autopilot on real servers: drills with a wrong limit, healthy and shifting workloads."""
