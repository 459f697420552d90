"""Failing checks kept as folders, to be run again."""
