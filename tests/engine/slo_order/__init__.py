"""The order of prompts by their slack."""
