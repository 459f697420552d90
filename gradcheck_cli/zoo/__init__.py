"""Many models: each is checked in a process of its own, and its results are stored as soon as it ends.

Start with `engine.run`: it takes jobs and gives the records of each job once, whatever a model does to its process.
"""
