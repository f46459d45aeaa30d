"""What a copy of attn_np must do: one small function for each promise, called with the copy's name.

A check raises `Caught` where the promise is broken. Numbers are judged by the derived bounds of the whole reference,
everything else exactly: by relations that the copy must meet itself, so that they would also catch a mistake that all
trees share. Warnings count as errors: nothing in the library warns.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from parity_tests.tests.decoding import ways
from parity_tests.tests.laws import attends_to_itself, keyed, masked
from parity_tests.tests.mutation import checks_caches as caches
from parity_tests.tests.mutation import checks_chosen as chosen
from parity_tests.tests.mutation import checks_decoding as decoding
from parity_tests.tests.mutation import checks_distances as distances
from parity_tests.tests.mutation import checks_drop_in as drop_in
from parity_tests.tests.mutation import checks_far as far
from parity_tests.tests.mutation import checks_functions as functions
from parity_tests.tests.mutation import checks_generating as generating
from parity_tests.tests.mutation import checks_layers as of_layers
from parity_tests.tests.mutation import checks_package as package
from parity_tests.tests.mutation import checks_paged as paged
from parity_tests.tests.mutation import checks_public as public
from parity_tests.tests.mutation import checks_rows as rows
from parity_tests.tests.mutation import checks_shared as shared
from parity_tests.tests.mutation import checks_terms as terms
from parity_tests.tests.mutation import checks_weigh as weigh
from parity_tests.tests.mutation.calls import (
    Labelled,
    Scene,
    chief,
    kinds,
    layers,
    scenes,
)


@dataclass(frozen=True)
class Check:
    """A named check; called with the name of a copy."""

    name: str
    run: Callable[[str], None]

    def __call__(self, alias: str) -> None:
        self.run(alias)


@cache
def battery(variants: tuple[str, ...]) -> tuple[Check, ...]:
    """Every check of the shared files and some variants, cheap ones and those that see most first."""
    found: list[Check] = []

    def add(function: Callable[..., None], *args: Any, name: str = "") -> None:
        said = [a.name if isinstance(a, Scene) else words(a) if isinstance(a, tuple) else str(a) for a in args]
        found.append(Check(name or " ".join([function.__name__.replace("_", " "), *said]), partial(function, *args)))

    add(functions.handed_over)
    add(functions.functions)
    add(functions.normed)
    add(functions.turned)
    add(functions.sparse)
    add(functions.entmax)
    add(functions.hardest)
    add(chosen.chosen_places)
    add(chosen.chosen_alone)
    add(chosen.chosen_at_once)
    add(chosen.chosen_in_steps)
    add(functions.picked)
    add(functions.rows_of_tables)
    add(functions.between_entries)
    add(functions.encoded)
    add(functions.watched_scan)
    add(functions.wrong_attends)
    add(functions.hidden_from_attend)
    add(functions.weighed)
    for call in functions.ATTENDS:
        add(public.attend_pulled_back, call)
    add(public.pulled_back)
    for check in (
        public.attends_from_places,
        public.wrong_places,
        public.merged_parts,
        public.recurred,
        paged.read_from_pages,
        paged.written_to_pages,
        public.no_gradient,
    ):
        add(check)
    for check in (public.rotated_by_angles, public.lengths_of_positions, public.wrong_positions, public.wrong_scores):
        add(check)
    for function in ("scaled_dot_product_attention", "dot_product_attention"):
        add(drop_in.stood_in, function)
    for alpha in (1, 1.25, 1.5, 2, 3.0):
        add(public.weights_of_scores, alpha)
    add(functions.visibilities)
    add(functions.patterned)
    add(rows.blocks_of_rows)
    add(rows.when_rows_go_at_once)
    add(rows.distances_scored)
    add(distances.distances_added)
    add(distances.offsets_of_grids)
    add(terms.terms_added)
    add(terms.terms_from_places)
    add(rows.vectors_by_distance)
    add(far.near_and_far)
    add(rows.picked_from_special_arrays)
    add(weigh.weighed_rows)
    add(weigh.weighed_blocks)
    for layer in layers(("mla", "linear")):  # some parameters are not drawn, or from a normal distribution
        add(of_layers.constructor, layer)
    add(of_layers.who_is_visible, next(x for x in layers(("mha",)) if x[0] == "mha/cross"))
    add(decoding.over_devices)
    add(decoding.states_over_devices)
    add(decoding.convolved)
    add(decoding.patterns_over_devices)
    add(decoding.angles_twice)
    add(decoding.forgotten)
    add(shared.shared_in_calls)
    add(shared.shared_in_steps)
    add(decoding.written)
    add(decoding.functions_of_a_cache)
    add(decoding.what_counts)
    add(decoding.refused_calls)
    add(caches.rows_of_a_cache)
    add(caches.given_numbers)
    add(decoding.narrow_caches, layers(("retention",))[0])  # it keeps a state
    add(package.foreign_files)
    add(package.pretrained_files)
    add(package.doubtful_files)
    add(package.traced)
    add(functions.judged_functions, "float64")
    add(functions.judged_functions, "float32")
    add(functions.sinks_that_are_none)
    for call, (_, names) in functions.ATTENDS.items():
        add(functions.attending, 2, call, "float64", 6)
        add(functions.attending, 3, call, "bfloat16", 6)
        if "sinks" not in names:  # one for each head
            add(functions.attending, 1, call, "float32", 0)
        add(functions.attending, 1, call, "float64", 6)
        add(functions.attending, 6, call, "float64", 6)
        # As many key/value heads as keys, as queries; as many query heads as keys, as a key is wide.
        for groups, heads in ((7, 14), (5, 10), (1, 7), (1, 3)):
            add(functions.attending, groups, call, "float64", heads)
    add(functions.fused_for_plain_arrays)
    for ranks in ((0, 0), (3, 0), (2, 3), (1, 2), (0, 1)):
        add(functions.fused_without_heads, *ranks)
    add(functions.fused_past_rubbish)
    for call, (options, _) in functions.ATTENDS.items():
        if "normalize_over" not in options:
            add(functions.fusing, 2, call, "float64", 1.0)
            add(functions.fusing, 1, call, "float64", 100.0)
            add(functions.fusing, 6, call, "bfloat16", 1.0)
    for value in (1e3, np.nan):
        add(functions.head_by_head, "all", value)
        add(functions.head_by_head, "all, sinks", value)
    first = chief(variants)
    for layer in (*first, *(x for x in layers(variants) if x not in first)):
        for scene in scenes(variants):
            if scene.basic and scene.case.example == layer[0]:
                add(of_layers.ends, scene)
        for check in relations(layer, layer in first):
            add(*check)
    for layer in decoding.decoding(variants):
        for names in ways(layer[1]):
            add(decoding.in_pieces, layer, names)
            add(decoding.between_padding, layer, names)
        for check in (decoding.no_room, decoding.wrong_steps, decoding.narrow_caches, decoding.step_tape):
            add(check, layer)
    for scene in scenes(variants):
        if not scene.basic:
            add(of_layers.ends, scene)
    for scene in scenes(variants):
        case = scene.case
        slow = getattr(case.config, "family", "recurrent") == "recurrent"
        if scene.basic and case.dtype == "float64" and (case.call == "full" or not slow):
            add(of_layers.stages, scene)
    return tuple(found)


def words(given: tuple[Any, ...]) -> str:
    """The name of a layer, or several names."""
    return " ".join(x for x in given if isinstance(x, str))


def relations(layer: Labelled, first: bool) -> Iterator[tuple[Any, ...]]:
    """The checks that a layer's config calls for, with their arguments; the first of a class gets all of them."""
    name, config = layer
    yield package.wrong_cotangents, layer
    yield of_layers.huge_scores, layer
    yield of_layers.taped_dtypes, layer
    yield of_layers.constructor, layer
    yield of_layers.parameters, layer
    if kinds(config, "keep"):
        yield of_layers.dropping, layer
    yield package.pulled_back, layer
    if masked(config):
        yield of_layers.query_without_keys, layer
        if keyed(config):
            yield of_layers.hidden_gradients, layer
        if kinds(config, "bias"):
            yield of_layers.hiding_bias, layer
    for value in (np.nan, np.inf, 1e3) if first else (np.nan,):
        if keyed(config):
            yield of_layers.hidden_keys, layer, value
        if attends_to_itself(config):
            yield of_layers.padding, layer, value
        if keyed(config) and getattr(config, "window", None):
            yield of_layers.beyond_the_window, layer, value
    if config.class_name == "Seq2Seq" and not name.endswith("/plain"):  # its outputs are no inputs
        yield generating.wrong_decodings, layer
        vectors = config.vocab_size is None  # type: ignore[attr-defined]
        for what in generating.decodings(config, "float64"):
            yield (generating.generating, layer, "float64", what) if vectors else (generating.speaking, layer, what)
        if vectors:
            yield generating.generating, layer, "float32", "with a state"
            yield generating.generating, layer, "bfloat16", "masked"
    if config.class_name == "GatedRecurrentUnit":
        yield of_layers.one_of_a_stack, layer
    if config.class_name == "RecurrentDecoder":
        yield of_layers.unchecked_run, layer
    if first:
        yield package.wrong_arguments, layer
        yield package.wrong_configs, layer
        yield of_layers.nothing_written, layer
        yield of_layers.strided, layer
        yield of_layers.empty, layer, "plain"
        yield of_layers.empty, layer, "full"
        if "." not in name:
            yield package.building, layer
            yield package.files, layer
