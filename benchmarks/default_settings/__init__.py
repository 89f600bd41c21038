"""Is the default the best setting? Ours at its default beside fixed budgets, its past and peers."""
