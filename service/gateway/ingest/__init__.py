"""From a body to prompts and back to judged texts, in processes beside the event loop."""
