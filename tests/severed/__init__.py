"""Nets that are cut off from their loss by nature, in part, by their values, and twins that are not."""
