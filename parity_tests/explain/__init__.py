"""Why two implementations differ: the first stage that is wrong, and the known mistake that gives its numbers."""
