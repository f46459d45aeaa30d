"""Each variant against scalar loops of its paper's formulas, and against independent implementations."""
