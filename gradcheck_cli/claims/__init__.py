"""Gradients that others have made, as a model, a file or another model has them: what they claim, and who is to blame."""
