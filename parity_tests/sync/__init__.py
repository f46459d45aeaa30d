"""What is generated and committed: the twins of the NumPy files, stubs, and tables in the documentation."""
