"""What was witnessed, and the way from who saw it to the folds: facts, lanes, the pump."""
