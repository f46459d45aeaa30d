"""A referee for kernels: what they are asked, how far a right one may be, and which mistake gives the wrong numbers."""
