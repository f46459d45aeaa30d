"""Survivors that were looked at: why each of these edits changes nothing that is promised."""

from parity_tests.ast_mutants.sources import Key

# Reason, then the mutants that it holds for: file, function, text before and after, and which of those that read alike.
REVIEWED: tuple[tuple[str, tuple[Key, ...]], ...] = (
    (
        "`astype` takes a scalar type for its dtype.",
        (
            Key("_core.py", "", "np.dtype(np.float64)", "np.float64"),
            Key("_core.py", "", "np.dtype(np.float16)", "np.float16"),
            Key("_core.py", "", "np.dtype(ml_dtypes.bfloat16)", "ml_dtypes.bfloat16"),
        ),
    ),
    (
        "NumPy's integers compare and print as Python's do.",
        (
            Key("_core.py", "take", "int(tokens.min())", "tokens.min()"),
            Key("_core.py", "take", "int(tokens.max())", "tokens.max()"),
        ),
    ),
    (
        "The letters keep one order in both factors and in the product, which is transposed at the end.",
        (
            Key(
                "_core.py",
                "einsum",
                "[x for x in left if x in right and x not in out]",
                "[x for x in reversed(list(left)) if x in right and x not in out]",
            ),
            Key(
                "_core.py",
                "einsum",
                "[x for x in left if x not in right]",
                "[x for x in reversed(list(left)) if x not in right]",
            ),
            Key(
                "_core.py",
                "einsum",
                "[x for x in right if x not in left]",
                "[x for x in reversed(list(right)) if x not in left]",
            ),
        ),
    ),
    (
        "No string of ours has a letter in one factor alone that the result lacks: both raise.",
        (Key("_core.py", "einsum", "x in right and x not in out", "x not in out"),),
    ),
    (
        "An array of another rank is refused all the same, when its axes are put in order.",
        (
            Key("_core.py", "einsum", "zip(left, a.shape, strict=True)", "zip(left, a.shape)"),
            Key("_core.py", "einsum", "zip(left, a.shape, strict=True)", "zip(left, a.shape, strict=False)"),
            Key("_core.py", "einsum", "zip(right, b.shape, strict=True)", "zip(right, b.shape, strict=False)"),
        ),
    ),
    (
        "The number of entries is the same in NumPy's integers and in whichever order it is multiplied.",
        (
            Key(
                "_core.py",
                "einsum.flat",
                "int(np.prod([size[x] for x in letters], dtype=np.int64))",
                "np.prod([size[x] for x in letters], dtype=np.int64)",
            ),
            Key("_core.py", "einsum.flat", "[size[x] for x in letters]", "[size[x] for x in reversed(list(letters))]"),
        ),
    ),
    (
        "NumPy multiplies a 16-bit matrix with a float32 one in float32, exactly as after widening it.",
        (Key("_core.py", "einsum", "widen(b).transpose", "b.transpose"),),
    ),
    (
        "NumPy adds and multiplies a 16-bit array to a float32 one in float32, exactly as after widening it.",
        (Key("_core.py", "linear", "y + widen(bias)", "y + bias"),),
    ),
    (
        "At 0 both sides give 1 / 2: exp(-0) is 1.",
        (Key("_core.py", "sigmoid", "np.where(x >= 0, 1.0, small)", "np.where(x > 0, 1.0, small)"),),
    ),
    (
        "A row without keys holds -inf alone: exp of it is 0 whatever is subtracted.",
        (Key("_core.py", "softmax", "np.where(top == -np.inf, 0.0, top)", "np.where(top == -np.inf, -1.0, top)"),),
    ),
    (
        "0 divided by anything but 0 is 0.",
        (Key("_core.py", "softmax", "np.where(total == 0, 1.0, total)", "np.where(total == 0, -1.0, total)"),),
    ),
    (
        "`near` is True everywhere until a limit narrows it.",
        (Key("_core.py", "visible", "near & (ahead <= right)", "ahead <= right"),),
    ),
    (
        "The order of the axes that are reduced does not matter.",
        (
            Key(
                "_core.py",
                "seen",
                "(i for i, letter in enumerate(source) if letter not in target)",
                "(i for i, letter in reversed(list(enumerate(source))) if letter not in target)",
            ),
        ),
    ),
    (
        "As many heads as the queries have: every head h is taken from h // 1.",
        (Key("_core.py", "repeat_heads", "x.ndim == 3 or x.shape[2] == q.shape[2]", "x.ndim == 3"),),
    ),
    (
        "A step gives as many arrays every time, one for each name.",
        (
            Key("_core.py", "scan", "zip(*collected, strict=True)", "zip(*collected)"),
            Key("_core.py", "scan", "zip(*collected, strict=True)", "zip(*collected, strict=False)"),
            Key("_core.py", "scan", "zip(names, stacked, strict=True)", "zip(names, stacked)"),
            Key("_core.py", "scan", "zip(names, stacked, strict=True)", "zip(names, stacked, strict=False)"),
        ),
    ),
    (
        "Of one entry, all but the last are none.",
        (Key("_core.py", "scan", "y[:, None][:, :0]", "y[:, None][:, :-1]"),),
    ),
    (
        "A layer has one base, which takes one argument.",
        (
            Key("_core.py", "Layer.__init_subclass__", "cls.__orig_bases__[0]", "cls.__orig_bases__[-1]"),
            Key(
                "_core.py",
                "Layer.__init_subclass__",
                "get_args(cls.__orig_bases__[0])[0]",
                "get_args(cls.__orig_bases__[0])[-1]",
            ),
        ),
    ),
    (
        "Each is set by itself: the order does not matter.",
        (
            Key(
                "_core.py",
                "Layer.set_params",
                "for name in self.config.params(): ...",
                "for name in reversed(list(self.config.params())): ...",
            ),
            Key(
                "_core.py",
                "Layer.train",
                "for _, layer in self.walk(): ...",
                "for _, layer in reversed(list(self.walk())): ...",
            ),
        ),
    ),
    (
        "The order of the axes that are summed over does not matter.",
        (
            Key(
                "_vjp.py",
                "sum_to",
                "(lead + i for i, n in enumerate(shape) if n == 1 and dy.shape ...",
                "(lead + i for i, n in reversed(list(enumerate(shape))) if n == 1 and dy.shape ...",
            ),
        ),
    ),
    (
        "To sum over an axis of size 1 changes no number, and the shape is set afterwards.",
        (Key("_vjp.py", "sum_to", "n == 1 and dy.shape[lead + i] != 1", "n == 1"),),
    ),
    (
        "As many heads as there were: each is the sum of its one copy.",
        (Key("_vjp.py", "repeat_heads_vjp", "heads is None or dx.shape[2] == heads", "heads is None"),),
    ),
    (
        "NumPy's product takes Booleans as 0 and 1 in the dtype of the other factor.",
        (
            Key(
                "_vjp.py",
                "take_vjp",
                "(tokens[..., None] == np.arange(table.shape[0])).astype(dy.dtype)",
                "tokens[..., None] == np.arange(table.shape[0])",
            ),
        ),
    ),
    (
        "A sum of a few terms in another order: within the bound of every order.",
        (
            Key("_vjp.py", "inputs_vjp", "total(dquery, dkey, dvalue)", "total(dkey, dquery, dvalue)"),
            Key("_vjp.py", "inputs_vjp", "total(dquery, dkey, dvalue)", "total(dquery, dvalue, dkey)"),
            Key("_vjp.py", "inputs_vjp", "total(dkey, dvalue)", "total(dvalue, dkey)"),
            Key("_vjp.py", "inputs_vjp", "total(dquery, dkey)", "total(dkey, dquery)"),
        ),
    ),
    (
        "Which seed a loaded layer's generator starts from is not promised, only that it is always the same.",
        (
            Key(
                "_api.py",
                "load",
                "cls(found.config, rng=0, dtype=found.dtype or wanted or 'float32', _values=found.values)",
                "cls(found.config, rng=1, dtype=found.dtype or wanted or 'float32', _values=found.values)",
            ),
        ),
    ),
    (
        "Nothing is hidden here: without a mask the letters are not read.",
        (
            Key(
                "dot_product.py",
                "DotProductAttention.__call__",
                "inputs(tape, 'bts', None, query, key, value)",
                "inputs(tape, 'bts_', None, query, key, value)",
            ),
        ),
    ),
    (
        "Which axes are reduced does not depend on their order: both are gone from the result.",
        (Key("fused_qkv.py", "only_live", "seen('bhts->bsd', allowed)", "seen('bths->bsd', allowed)"),),
    ),
    (
        "The gradients of q, k and v are 0 there already, by attend_vjp, and so is their product with the weights.",
        (
            Key("fused_qkv.py", "FusedQKVAttention.vjp", "dx = only_live(dx, tape.get('allowed'))", "pass"),
            Key("fused_qkv.py", "FusedQKVAttention.vjp", "only_live(dx, tape.get('allowed'))", "dx"),
            Key("fused_qkv.py", "FusedQKVAttention.vjp", "tape.get('allowed')", "tape.get('allowed_')"),
        ),
    ),
    (
        "A product or sum with a 16-bit operand is computed in float32: einsum and linear widen what they get.",
        (Key("gru.py", "GRULayer.__call__", "widen(self.b_h)", "self.b_h"),),
    ),
    (
        "These names are not read; the tape gets the values by the names that `scan` is told.",
        (
            Key("gru.py", "GRULayer.__call__", "(r, z, n, h)", "(z, r, n, h)"),
            Key("gru.py", "GRULayer.__call__", "(r, z, n, h)", "(r, n, z, h)"),
        ),
    ),
    (
        "The contract makes w_q, w_k and w_score together or not at all, so one of them says it for all three.",
        (
            Key(
                "luong.py",
                "LuongAttention.__call__",
                "self.w_q is not None and self.w_k is not None and (self.w_score is not None)",
                "self.w_q is not None or self.w_k is not None or self.w_score is not None",
            ),
            Key(
                "luong.py",
                "LuongAttention.__call__",
                "self.w_q is not None and self.w_k is not None and (self.w_score is not None)",
                "self.w_k is not None and self.w_score is not None",
            ),
            Key(
                "luong.py",
                "LuongAttention.__call__",
                "self.w_q is not None and self.w_k is not None and (self.w_score is not None)",
                "self.w_q is not None and self.w_score is not None",
            ),
            Key(
                "luong.py",
                "LuongAttention.__call__",
                "self.w_q is not None and self.w_k is not None and (self.w_score is not None)",
                "self.w_q is not None and self.w_k is not None",
            ),
            Key(
                "luong.py",
                "LuongAttention.vjp",
                "self.w_q is not None and self.w_k is not None and (self.w_score is not None)",
                "self.w_q is not None or self.w_k is not None or self.w_score is not None",
            ),
            Key(
                "luong.py",
                "LuongAttention.vjp",
                "self.w_q is not None and self.w_k is not None and (self.w_score is not None)",
                "self.w_k is not None and self.w_score is not None",
            ),
            Key(
                "luong.py",
                "LuongAttention.vjp",
                "self.w_q is not None and self.w_k is not None and (self.w_score is not None)",
                "self.w_q is not None and self.w_score is not None",
            ),
            Key(
                "luong.py",
                "LuongAttention.vjp",
                "self.w_q is not None and self.w_k is not None and (self.w_score is not None)",
                "self.w_q is not None and self.w_k is not None",
            ),
        ),
    ),
    (
        "Key and value are one array here, hidden alike, and their gradients are added up.",
        (
            Key("self_attention.py", "SelfAttention.__call__", "(query, key, value)", "(query, value, key)"),
            Key("self_attention.py", "SelfAttention.vjp", "(query, key, value)", "(query, value, key)"),
            Key(
                "self_attention.py",
                "SelfAttention.vjp",
                "(tape['seen_query'], tape['seen_key'], tape['seen_value'])",
                "(tape['seen_query'], tape['seen_value'], tape['seen_key'])",
            ),
            Key(
                "self_attention.py",
                "SelfAttention.vjp",
                "inputs_vjp(tape, 'bts', dquery, dkey, dvalue)",
                "inputs_vjp(tape, 'bts', dquery, dvalue, dkey)",
            ),
        ),
    ),
)

EQUIVALENT: dict[Key, str] = {key: reason for reason, keys in REVIEWED for key in keys}
