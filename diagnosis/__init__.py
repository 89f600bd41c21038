"""From recorded facts to a ranked list of causes, each with its evidence and its runbook."""
