"""The two sides of one pair held against each other, and the verdict on every entry."""
