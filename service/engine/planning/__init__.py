"""What a step is planned with: budgets of tokens, targets and slack of classes, and the plan's rows
and load as they are put together."""
