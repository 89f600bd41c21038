"""Facts become timelines: each request's phases, tokens and account."""
