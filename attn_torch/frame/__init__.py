"""What every layer does around its formula: making it, checks, its memory, and the order of a call."""
