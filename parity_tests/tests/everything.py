"""Which tests of variants stand back for `--everything`, so that the default suite takes minutes.

The tests that every variant gets are thousands, and JAX compiles every shape they ask for. A variant reads the same in
every tree and is made of the same pieces as others: so some tests are asked of a few variants, one of each kind.
"""

from collections.abc import Mapping

# Asked every test but some of those that take long, every example; in JAX, in the files below, their first.
WHOLE = ("mha", "additive", "gru")

# One of each other kind of layer: asked every test of the files below, in NumPy and PyTorch, of its first example.
KINDS = ("decoder", "linear", "longformer", "seq2seq")

# The files whose tests are many, and of each the tests that every variant is asked all the same, in NumPy and PyTorch,
# of its first example; in JAX the variants of `KINDS` are.
FEW: Mapping[str, tuple[str, ...]] = {
    "test_bad_input": (
        "test_a_missing_field",
        "test_an_unknown_path",
        "test_weights_of_another_kind_have_no_fast_path",
    ),
    "test_compile": (),
    "test_conventions": (
        "test_a_query_without_keys",
        "test_batch_rows_do_not_meet",
        "test_hidden_keys_influence_nothing",
        "test_a_call_writes_nothing",
        "test_no_query_has_keys",
        "test_padding_that_sees_nothing_and_nobody_sees",
        "test_the_backward_pass_drops_what_the_forward_dropped",
        "test_the_future_does_not_reach_back",
    ),
    "test_docs": ("test_variant_page",),
    "test_fuzz": (),
    "test_relations": ("test_what_a_contract_is_exempt_from_does_not_hold",),
    "test_semantics": ("test_infinite_bias_in_every_variant", "test_seeds_draw_masks"),
}

# Of these files every variant is asked everything: of every example in NumPy, and in the other trees of its first. In
# PyTorch the first is that of the tests, which ask for nothing but causal ones.
FIRST = ("test_decoding",)

# Calls of functions and of fields that are compiled by default, in PyTorch or in JAX, some of each kind.
ROWS = (
    "attend",
    "attend, offset= of an array without axes",
    "attend, offset= and lengths= of each sequence",
    "attend, pattern= with arrays, and offset=",
    "attend, return_lse=, and merge",
    "attend, softmax_fn=entmax",
    "attend, terms=",
    "decoder, positions=(cos, sin), norm_bias=, context_norm= and clip_qkv=",
    "drop_in.attention_fn",
    "drop_in.dot_product_attention",
    "drop_in.scaled_dot_product_attention",
    "drop_in.transformers_attention",
    "linear, feature_map= of one's own",
    "mha, memory_keys= and output_dim=, in steps",
    "recur, in chunks",
    "rotary, rope_sections=, in steps",
    "rotate by rotary_angles",
)

# Tests that ask the same of many numbers, sizes or names: by default every second to fifth is asked, or fewer.
# In long lists the number divides none of the lengths that follow each other fastest, so that every value is met; what
# short ones leave out is asked by `make sampled`.
EVERY: Mapping[str, int] = {
    "test_attend::test_the_trees_give_what_the_reference_gives": 5,
    "test_bad_input::test_a_bad_call": 5,
    "test_bad_input::test_an_unknown_path": 5,
    "test_caches::test_a_row_begins_anew": 4,
    "test_caches::test_guesses_are_taken_back": 2,
    "test_caches::test_rows_go_on_several_times": 4,
    "test_causes::test_a_cause_holds_in_every_call_of_a_candidate": 2,
    "test_causes::test_a_cause_is_told_once_and_nothing_else": 4,
    "test_causes::test_a_realistic_mistake_is_named": 4,
    "test_causes::test_a_sigmoid_that_overflows_is_seen": 2,
    "test_causes::test_two_mistakes_at_once_are_both_named": 2,
    "test_changed_fields::test_a_field_changes_what_it_did": 4,
    "test_compile::test_traces_inside_transformations": 5,
    "test_consequences::test_a_right_port_may_tap_what_it_likes": 3,
    "test_conventions::test_empty_batches_and_sequences": 2,
    "test_decoding::test_a_cache_keeps_its_dtypes": 4,
    "test_decoding::test_padding_takes_no_place": 2,
    "test_decoding::test_steps_are_the_full_pass": 4,
    "test_decoding_causes::test_a_mistake_in_a_cache_by_hand_is_named": 11,
    "test_decoding_causes::test_a_right_cache_of_each_kind_agrees": 2,
    "test_decoding_causes::test_our_pieces_give_the_full_pass": 9,
    "test_dependence::test_a_result_depends_on_what_its_query_sees": 7,
    "test_distances::test_a_bias_by_distance_is_that_bias_by_pairs": 3,
    "test_distributed_torch::test_sharded_cases_agree_and_are_summed_once": 2,
    "test_docs::test_variant_page": 3,
    "test_docs::test_variant_page_shows_a_call_that_works": 2,
    "test_documents::test_a_step_without_numbers_goes_on_with_the_document": 4,
    "test_documents::test_each_document_is_as_if_by_itself": 4,
    "test_documents::test_steps_begin_documents_and_go_on_with_them": 5,
    "test_dynamic_functions::test_a_program_is_exported_for_a_batch_that_it_does_not_know": 5,
    "test_dynamic_functions::test_heads_lengths_and_sequences_may_vary": 7,
    "test_empty_rows::test_a_fill_is_said_first_and_named": 3,
    "test_export_jax::test_a_layer_is_lowered_for_each_platform": 2,
    "test_far::test_near_and_far_keys_are_all_keys": 3,
    "test_fast::test_a_planted_bug_is_seen": 2,
    "test_fast::test_fast_paths_are_right_kernels": 2,
    "test_fills::test_every_fill_is_the_number_that_it_is": 3,
    "test_foreign_types::test_a_number_that_cannot_be_is_refused_in_words": 4,
    "test_foreign_types::test_no_default_of_a_family_is_taken_silently": 6,
    "test_forms::test_forms_agree": 3,
    "test_forms::test_padding_is_not_there_and_steps_are_the_full_pass": 3,
    "test_fuzz::test_a_config_of_anything": 5,
    "test_fuzz::test_what_is_planted_in_the_reader_is_found": 2,
    "test_gradients::test_gradients_of_any_options_are_those_of_the_rules": 2,
    "test_integers::test_integers_of_every_type_are_the_same_numbers": 2,
    "test_judge::test_tf32_keeps_its_own_promise_and_no_other": 3,
    "test_judge::test_what_a_variant_makes_of_constants_is_charged_its_rounding": 5,
    "test_kernels::test_a_hidden_score_may_be_inf_minus_inf": 2,
    "test_kernels::test_numpys_path_gives_what_the_textbook_gives": 3,
    "test_kernels::test_of_some_axis_there_may_be_none": 2,
    "test_kernels_jax::test_a_wider_bias_or_sinks_is_taken_in_the_type_of_the_queries": 2,
    "test_kernels_jax::test_context_and_gradients": 7,
    "test_kernels_jax::test_edges_of_windows": 7,
    "test_kernels_jax::test_hessians_of_one_block": 2,
    "test_kernels_jax::test_one_query": 9,
    "test_kernels_jax::test_what_a_block_shows_is_its_part_of_the_whole": 14,
    "test_kernels_np::test_edges_of_windows": 3,
    "test_kernels_np::test_nan_that_some_rows_see_stays_with_them": 3,
    "test_kernels_np::test_numbers_may_be_of_any_size_at_any_place": 3,
    "test_kernels_np::test_numbers_that_nobody_sees_may_be_anything": 3,
    "test_kernels_np::test_rows_of_a_batch_may_be_unlike": 3,
    "test_kernels_torch::test_pytorchs_path_gives_what_the_textbook_gives": 4,
    "test_kernels_torch::test_what_is_traced_has_no_numbers_to_look_at": 3,
    "test_layers_jax::test_a_layer_over_devices_is_that_of_one": 2,
    "test_layouts::test_a_size_that_is_left_out_is_the_default": 4,
    "test_layouts::test_a_torch_gru_gives_the_same_numbers": 3,
    "test_layouts::test_both_directions_are_bit_identical": 7,
    "test_library::test_an_output_cut_from_the_graph_is_seen": 2,
    "test_library::test_other_shapes_and_types_are_findings": 4,
    "test_library::test_the_cause_is_named": 3,
    "test_likes::test_simulated": 2,
    "test_llama_like::test_trains_in_flax": 2,
    "test_matrix::test_a_planted_bug_is_seen": 2,
    "test_matrix::test_each_pattern_with_each_term_and_weighing": 7,
    "test_matrix::test_each_weighing_by_rows_in_jax": 2,
    "test_merge::test_lse_and_its_gradients_stay_within_their_bounds": 7,
    "test_mistakes::test_a_planted_mistake_is_seen": 2,
    "test_mla::test_the_cache_is_the_latent_and_one_key": 2,
    "test_modules::test_a_right_port_raises_no_alarm": 2,
    "test_modules::test_the_mistake_in_the_second_of_two_layers_is_found_there": 3,
    "test_modules_transformers::test_llama_of_transformers": 3,
    "test_more_causes::test_a_gradient_that_stops_at_one_array_is_named": 2,
    "test_more_causes::test_a_mistake_of_a_port_is_named": 5,
    "test_more_causes::test_a_number_of_which_none_is_known_is_none": 3,
    "test_more_causes::test_no_candidate_ends_the_search_in_an_error": 9,
    "test_more_causes::test_other_fields_are_one_mistake": 3,
    "test_more_causes::test_the_ports_themselves_are_right": 3,
    "test_mutants::test_planted_bug_dies": 7,
    "test_mutants::test_planted_bug_dies_where_no_reference_is_whole": 5,
    "test_named_mistakes::test_a_mistake_is_named": 2,
    "test_narrower_types::test_a_mask_of_exact_numbers_keeps_float64_in_jax": 2,
    "test_nnx::test_tabulate_says_shapes_and_leaves_the_layer_whole": 3,
    "test_nnx::test_windows_scales_and_caps_may_be_any_number": 4,
    "test_norms::test_values_and_gradients_stay_within_their_bounds": 3,
    "test_paged::test_what_nobody_sees_may_be_anything": 2,
    "test_pages::test_formulas_fit_beside_their_lines": 5,
    "test_pairs::test_options_in_pairs": 7,
    "test_parallel_jax::test_arrays_that_do_not_lie_so_are_refused": 2,
    "test_parallel_jax::test_devices_agree_with_one": 3,
    "test_parallel_torch::test_processes_agree_with_one": 2,
    "test_parity::test_agrees_with_the_reference": 7,
    "test_parity::test_every_stage_is_judged": 3,
    "test_peers::test_the_same_numbers": 2,
    "test_ports_as_written::test_a_preset_is_judged_with_its_fields": 3,
    "test_positions::test_layers_take_angles_for_positions": 2,
    "test_projections::test_a_module_that_replaces_one_is_called": 5,
    "test_recomputed::test_no_array_of_all_pairs": 2,
    "test_recur::test_a_planted_bug_is_seen": 2,
    "test_recur::test_outputs_states_and_gradients_stay_within_their_bounds": 3,
    "test_referee::test_a_promise_passes_where_it_is_said_and_fails_where_it_is_not": 2,
    "test_referee::test_broken_kernels_get_a_clear_verdict_and_the_run_goes_on": 3,
    "test_referee::test_lengths_beyond_a_block_and_wide_heads_are_asked": 3,
    "test_relations::test_relations_hold": 3,
    "test_relations::test_relations_hold_in_jax": 5,
    "test_rows::test_a_bug_planted_in_flaxs_blocks_of_keys_is_seen": 2,
    "test_rows::test_blocks_of_rows_keep_the_bounds": 9,
    "test_rows::test_flaxs_blocks_of_keys_keep_the_bounds": 4,
    "test_rows::test_hidden_scores_may_overflow": 2,
    "test_rows::test_the_last_query_stands_at_the_last_key": 2,
    "test_rows::test_the_last_query_stands_there_in_jax": 2,
    "test_rules::test_bound_holds_what_errors_in_the_inputs_do": 5,
    "test_rules::test_bound_holds_what_rounding_does": 3,
    "test_semantics::test_equal_scores_share_exactly": 5,
    "test_semantics::test_masks_of_fewer_axes_are_aligned_at_the_right": 2,
    "test_semantics::test_second_derivatives_and_forward_mode": 2,
    "test_shared_keys::test_steps_read_the_cache_of_the_layer": 3,
    "test_simplex::test_as_the_weights_of_attend": 2,
    "test_simplex::test_hidden_scores_may_hold_anything_and_those_in_sight_spoil_their_row_alone": 4,
    "test_simplex::test_weights_add_up_to_one_at_every_alpha": 2,
    "test_simplex::test_weights_and_gradients_stay_within_their_bounds": 5,
    "test_simplex::test_weights_that_rise_steeply_solve_their_equation": 4,
    "test_sizes::test_far_keys_weigh_what_their_own_head_gives_them": 3,
    "test_sizes::test_in_many_small_blocks": 2,
    "test_sparse::test_weights_and_gradients_stay_within_their_bounds": 5,
    "test_terms::test_terms_count_from_where_the_queries_stand": 2,
    "test_trace::test_a_mistake_is_named": 5,
    "test_trace::test_a_trace_survives_its_file": 4,
    "test_trace::test_frameworks_agree": 2,
    "test_trace::test_types_may_differ": 2,
    "test_transforms_jax::test_eval_shape": 3,
    "test_transforms_jax::test_view": 3,
    "test_transforms_numpy::test_a_backward_pass_in_the_midst_of_another": 2,
    "test_transforms_numpy::test_arrays_that_cannot_be_written_to": 3,
    "test_transforms_numpy::test_copies": 3,
    "test_transforms_numpy::test_dropout_in_many_threads": 3,
    "test_transforms_numpy::test_layouts_of_memory": 3,
    "test_transforms_numpy::test_many_threads_at_once": 4,
    "test_transforms_torch::test_autocast": 2,
    "test_transforms_torch::test_checkpoint": 2,
    "test_transforms_torch::test_copies": 3,
    "test_transforms_torch::test_meta": 2,
    "test_transforms_torch::test_per_sample_gradients": 2,
    "test_transforms_torch::test_state_dict": 2,
    "test_unjudged::test_a_gradient_of_a_long_recurrence_is_judged_on_a_shorter_sequence": 2,
    "test_unjudged::test_every_array_is_judged": 14,
    "test_untested::test_a_port_with_another_field_fails_or_is_named": 5,
    "test_untested::test_configs_of_one_meaning_are_one_function": 5,
    "test_untested::test_what_acts_at_a_distance_is_judged_there": 2,
    "test_weights::test_a_wrong_file_is_refused_and_the_layer_stays": 3,
    "test_weights::test_all_directions_are_bit_identical": 5,
    "test_weights::test_build_is_bit_identical_in_every_tree": 4,
    "test_weights::test_every_example_goes_through_a_file": 9,
    "test_whole_mistakes::test_a_mistake_is_found_at_its_submodule": 22,
    "test_whole_mistakes::test_a_right_model_raises_no_alarm": 7,
    "test_witnesses::test_scalar_loops": 5,
    "test_x_transformers::test_a_module_loads_and_gives_its_numbers": 2,
}

# What takes long and repeats, in other words, what others ask: left out but for these variants or rows. `make compiled`
# asks every variant for its transforms, on several devices too.
LONG: Mapping[str, tuple[str, ...]] = {
    # Steps of JAX arrays are compiled operation by operation, for every length of the cache.
    "test_a_mistake_in_a_cache_of_jax_arrays_is_named": (),
    "test_steps_of_nnx_with_is_causal_see_the_first_key": (),
    # Of the layers made of `attend`; what it moves between devices is asked by itself.
    "test_a_layer_sums_over_devices_once": ("mha",),
    "test_a_tape_adds_nothing_to_the_graph": ("mha",),
    "test_compile": ("mha", "linear"),
    "test_compiled_steps_compile_once": ("mha", "linear", "mla"),
    "test_dynamic": ("mha", "longformer"),
    # JAX compiles each; blocks of rows are asked of it by `test_blocks_of_rows_are_all_rows_at_once`.
    "test_each_weighing_by_rows_in_jax": (),
    "test_every_original_passes_the_checks_of_its_file": WHOLE,
    # Its trees. JAX compiles what the original and the copy compute.
    "test_a_planted_bug_in_one_function_is_seen": ("attn_np", "attn_torch"),
    # Of the patterns, terms and weighings those in which bugs are planted: JAX compiles each.
    "test_each_of_them_in_jax": (
        "chunks and neighbours, table, softmax",
        "dilated, slopes, sinks",
        "prefix or causal, table, softcap",
    ),
    # Beside parity, which compiles every example in JAX.
    "test_every_other_example": (),
    "test_every_other_example_is_one_graph": (),
    "test_export": ("mha", "gru", "decoder"),
    "test_export_dynamic": ("mha", "decoder"),
    # A quarter of them in each tree.
    "test_functions_compile_into_one_graph": ROWS[1::4],
    "test_functions_in_jax": ROWS[::4],
    "test_lengths_and_batches_vary": ("attend, terms=", "rotary, rope_sections=, in steps"),
    # Beside `test_one_layer`, which asks for the transform, and the parity of compiled calls with a tape.
    "test_nnx_jit": ("mha",),
    "test_one_layer": ("mha", "gru"),
    "test_options_in_pairs": ("first third",),
    "test_rows": ("mha", "gru"),
    # Beside the cases of `mha`, `gqa`, `decoder` and `sinks`: a sum more, heads that talk, heads that share a latent.
    "test_sharded_heads_agree_and_are_summed_once": ("axial", "mla", "talking_heads"),
    "test_some_dozen_calls": ("tenth 0",),
    "test_split_batches_agree": ("mha", "linear", "gru"),
    "test_tabulate": ("mha", "gru"),
    "test_the_last_query_stands_there_in_jax": ("more queries and dropout",),
    "test_two_layers": ("mha", "gru"),
}


def asked_of_twins(file: str, trees: set[str]) -> bool:
    """Whether a test in the file of a variant is one of JAX alone, and not of a variant that is asked all.

    A layer of JAX is the twin of NumPy's, word by word, and parity and decoding judge it: what the paper says of the
    formula is asked of NumPy and PyTorch by default, and of JAX by `make sampled`.
    """
    return trees == {"attn_jax"} and file.removeprefix("test_") not in WHOLE


def left_out(file: str, test: str, variant: str, first: bool, tree: str) -> bool:
    """Whether a test of one variant is among those that only `--everything` runs.

    Args:
        file, test: names, such as "test_conventions" and "test_no_query_has_keys".
        variant: whom it is asked of; or the row of a table, in a test of `LONG`.
        first: it is the variant's first example, or no certain one.
        tree: "attn_np", "attn_torch" or "attn_jax", in which it is asked; "" for none of these, or NumPy and PyTorch.
    """
    if test in LONG:
        return variant not in LONG[test]
    if variant in WHOLE:
        return tree == "attn_jax" and not first and file in {*FEW, *FIRST}
    if file in FIRST:
        return not first and tree != "attn_np"
    if file not in FEW:
        return False
    asked = variant in KINDS or test in FEW[file]
    if tree == "attn_jax":
        asked = variant in KINDS and test in FEW[file]
    return not (first and asked)
