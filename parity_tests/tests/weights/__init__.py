"""Weight files: ours, other libraries' layouts, and spoilt ones."""
