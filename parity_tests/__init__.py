"""The tests, and the tool that checks whether implementations of attention agree."""
