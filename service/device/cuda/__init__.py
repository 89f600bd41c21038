"""The executor for a GPU: graphs for decodes, tokens that stay on the device."""
