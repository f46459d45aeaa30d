"""Sequences on several devices: `parallel` in the three trees against one device, what moves, and what is refused."""
