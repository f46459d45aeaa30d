"""Mistakes that stand in sinks's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import at

learned, zero = at("sinks.py", "sinks", "learned"), at("sinks.py", "sinks", "zero")
MUTANTS = (
    learned(
        "sinks left out",
        "let the sink's score take part in the softmax: the weights of the keys add up to less than 1",
        "else upcast(self.sinks)\n",
        'else upcast(self.sinks) - float("inf")\n',
    ),
    learned(
        "sink of the next head",
        "give every head its own sink: sinks[h] belongs to the scores of head h",
        "else upcast(self.sinks)\n",
        "else concatenate([upcast(self.sinks)[1:], upcast(self.sinks)[:1]], 0)\n",
        needs=("concatenate",),
    ),
    learned(
        "exponential of the sink used as its score",
        "pass the sink as a score: the softmax takes exp of it",
        "else upcast(self.sinks)\n",
        "else exp(upcast(self.sinks))\n",
        needs=("exp",),
    ),
    learned(
        "sink scaled with the scores",
        "leave the sink's score unscaled",
        "else upcast(self.sinks)\n",
        "else self.config.scale * upcast(self.sinks)\n",
    ),
    zero(
        "one added to the weights' sum for each key",
        "add exp(0) once: softmax off by one has one sink of score 0",
        'zeros((call.sizes["h"],), q)',
        'zeros((call.sizes["h"],), q) + call.sizes["s"]',
    ),
    zero(
        "sink of minus infinity for off by one",
        "a zero sink has the score 0, whose exponential is 1",
        'zeros((call.sizes["h"],), q)',
        'zeros((call.sizes["h"],), q) - float("inf")',
    ),
)
