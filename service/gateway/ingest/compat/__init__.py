"""Fields of other servers' dialects of OpenAI's API: what each is taken for here, and why."""
