"""Rules that hold for every variant: checks of a call, conventions, semantics, decoding."""
