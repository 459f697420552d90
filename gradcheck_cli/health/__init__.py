"""Whether a model can be trained through."""
