"""Traces: spans of a timeline, what is kept, and its delivery over OTLP."""
