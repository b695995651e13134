"""Losses of trained ensembles on the documents of an evaluation set; the only room that opens the test set."""
