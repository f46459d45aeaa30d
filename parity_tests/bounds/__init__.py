"""How far a correct result may be from the reference: error-carrying arrays, and derivatives along a direction."""

# Importing any module of the package registers the rules with the error-carrying arrays.
from parity_tests.bounds import arithmetic, derivatives, interpolation, reductions, softmax, sparse

__all__ = ["arithmetic", "derivatives", "interpolation", "reductions", "softmax", "sparse"]
