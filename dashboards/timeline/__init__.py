"""A journal as a trace for ui.perfetto.dev."""
