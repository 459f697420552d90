"""The whole procedure of checking a model, from a request to records."""
