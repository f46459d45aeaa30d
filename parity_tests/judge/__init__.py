"""The judge: cases, candidates, and whether every number of a candidate is within its bound."""
