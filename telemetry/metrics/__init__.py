"""Metrics: the catalog, their families, and the formats in which they are scraped."""
