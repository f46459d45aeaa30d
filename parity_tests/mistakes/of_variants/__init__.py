"""Mistakes of single variants: `MUTANTS` of the module that bears the name of the variant."""
