"""Stacks whose probes differ from what they share in a box each: what they hold, and how a box goes through operators."""
