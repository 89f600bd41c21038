"""The figures of docs/results, drawn from the committed results and from nothing else."""
