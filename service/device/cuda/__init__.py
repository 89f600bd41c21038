"""The executor for a GPU: captured graphs for decode steps, tokens that stay on the device. Nothing
here waits for the device but `collect`."""
