"""How far a correct result may be from the reference: error-carrying arrays, and derivatives along a direction."""
