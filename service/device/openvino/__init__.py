"""The decoder on the OpenVINO runtime."""
