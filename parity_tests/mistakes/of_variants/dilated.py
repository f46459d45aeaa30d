"""Mistakes that stand in dilated's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, allowing, at

both, causal = at("dilated.py", "dilated", "both"), at("dilated.py", "dilated", "causal")
COUNT = "count the reach in steps of the dilation: left * dilation positions to the left"
REACH = "left, right = (None if n is None else n * c.dilation for n in (left, right))"
MUTANTS = (
    causal("reach of a dilated window counted in positions", COUNT, REACH, "left, right = left, right"),
    both(
        "one step more to the right than asked for",
        "see no key beyond right * dilation positions",
        REACH,
        "left, right = (None if n is None else (n + i) * c.dilation for i, n in enumerate((left, right)))",
    ),
    both(
        "dilated keys counted from the first position",
        "take whole dilations from the query's own position: (s - t) mod dilation is 0",
        "Dilated(c.dilation)",
        allowing("Dilated", "key % self.dilation == 0 * query") + "(c.dilation)",
    ),
    both(
        "gaps of the window forgotten",
        "a dilated window hides the positions between its steps",
        "Dilated(c.dilation)",
        "Dilated(1)",
    ),
    causal(
        "pattern of the dilation forgotten where a mask is given",
        "apply the given mask and the pattern together",
        "Dilated(c.dilation)",
        "Dilated(c.dilation) if call.mask is None else None",
    ),
    both(
        "dropped weights kept in the backward of a dilated window",
        "drop in the backward what the forward dropped, and divide by the same share",
        "back.attend(dcontext)",
        "back.attend(dcontext, rate=0.0)",
        trees=NUMPY,
    ),
)
