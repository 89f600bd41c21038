"""The machine: processes, pauses, GPUs, the roofline."""
