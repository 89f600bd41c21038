"""The decoder as a graph of the OpenVINO runtime; `runtime` alone imports it."""
