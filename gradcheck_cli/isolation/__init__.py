"""A function run in a process of its own, which may take some time and memory and no more: whatever it does, it ends."""
