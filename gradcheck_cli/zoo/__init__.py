"""Many models: each is checked in a process of its own, what is found is kept as it comes.

`engine.run` is where to start: it takes jobs, and hands out the records of each one once, whatever the model does to
its process.
"""
