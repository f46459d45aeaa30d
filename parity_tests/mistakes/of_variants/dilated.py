"""Mistakes that stand in dilated's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, at

both, causal = at("dilated.py", "dilated", "both"), at("dilated.py", "dilated", "causal")
COUNT = "count the reach in steps of the dilation: left * dilation positions to the left"
MUTANTS = (
    causal("reach of a dilated window counted in positions", COUNT, "offset >= -left * c.dilation", "offset >= -left"),
    both(
        "one step more to the right than asked for",
        "see no key beyond right * dilation positions",
        "offset <= right * c.dilation",
        "offset < (right + 1) * c.dilation + 1",
    ),
    both(
        "dilated keys counted from the first position",
        "take whole dilations from the query's own position: (s - t) mod dilation is 0",
        "in_window = offset % c.dilation == 0",
        "in_window = (key_positions[:, None, :] + 0 * offset) % c.dilation == 0",
    ),
    both(
        "gaps of the window forgotten",
        "a dilated window hides the positions between its steps",
        "in_window = offset % c.dilation == 0",
        "in_window = offset == offset",
    ),
    causal(
        "pattern of the dilation forgotten where a mask is given",
        "apply the given mask and the pattern together",
        "in_window[:, None] & mask",
        "mask",
    ),
    both(
        "dropped weights kept in the backward of a dilated window",
        "drop in the backward what the forward dropped, and divide by the same share",
        "attend_vjp(tape, dcontext, scale=c.scale, rate=c.dropout)",
        "attend_vjp(tape, dcontext, scale=c.scale)",
        trees=NUMPY,
    ),
)
