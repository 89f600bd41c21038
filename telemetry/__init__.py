"""The vocabulary of facts and the folds that turn them into spans, histograms and screens."""
