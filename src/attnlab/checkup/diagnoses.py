"""The causes that a checkup can name: how to fix each, and which other causes it explains."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """One cause.

    Args:
        title: a few words, for tables.
        advice: how to fix it.
        explains: causes whose findings are only symptoms if this one is present.
        rank: smaller is more specific; symptoms are assigned to the most specific cause.
    """

    title: str
    advice: str
    explains: frozenset[str] = frozenset()
    rank: int = 1


_SEEN_TOO = frozenset({"prefix_differs", "learned_leak", "proof", "stress"})  # of any leak
_AHEAD = _SEEN_TOO | {"reads_ahead", "reads_some_ahead", "no_mask", "outside"}
_BROKEN = _AHEAD | set("not_finite flipped_mask inverted_mask off_by_one row_sums".split())
_BROKEN |= {"late_leak", "single_leaks", "overflow"}
_SCRAMBLED = _BROKEN | {"no_past"}
_SEE_THE_MAP = "The report's map shows which positions read later ones; check what connects them."
_LAST_AXIS = "Take the softmax over the last axis of (B, H, T queries, T keys): dim=-1."

CAUSES: dict[str, Cause] = {
    # masks
    "no_mask": Cause(
        "no causal mask",
        "Give the attention a causal mask (key <= query) and check that it reaches the softmax. "
        "Encoders such as BERT have none by design.",
        _AHEAD,
        rank=4,
    ),
    "flipped_mask": Cause(
        "mask flipped",
        "Swap query and key in the mask: tril instead of triu, key <= query.",
        _BROKEN,
        rank=2,
    ),
    "inverted_mask": Cause(
        "mask polarity inverted",
        "Invert the bool mask: in SDPA True means may attend, in nn.MultiheadAttention it means "
        "blocked.",
        _BROKEN | {"no_past", "empty_row"},
        rank=2,
    ),
    "off_by_one": Cause(
        "mask diagonal off by one",
        "Use the main diagonal: torch.tril(ones, diagonal=0), key <= query.",
        _BROKEN,
        rank=2,
    ),
    "self_blocked": Cause(
        "position cannot attend to itself",
        "Keep the diagonal: torch.tril(ones, diagonal=0), key <= query.",
        frozenset({"not_finite", "row_sums", "empty_row"}),
        rank=2,
    ),
    "empty_row": Cause(
        "query without keys",
        "Let every query see at least itself; a softmax over no keys is 0/0.",
        frozenset({"not_finite"}),
        rank=3,
    ),
    "single_leaks": Cause(
        "single positions read ahead",
        "Check how the mask is built at these positions (slices, windows, padding).",
        _AHEAD,
        rank=2,
    ),
    "late_leak": Cause(
        "reads ahead in long sequences only",
        "Look for a mask, a window or a buffer of constant size, smaller than block_size.",
        _AHEAD,
        rank=2,
    ),
    "zero_fill": Cause(
        "blocked scores become 0",
        "Fill with -inf: masked_fill(blocked, float('-inf')); a score of 0 keeps a weight of e^0.",
        _BROKEN,
    ),
    "finite_fill": Cause(
        "mask is a finite number",
        "Fill with -inf (or torch.finfo(dtype).min); scores can exceed a number such as -1e4.",
        _BROKEN,
    ),
    "added_bool": Cause(
        "0/1 mask added to the scores",
        "Pass a bool mask, or a float mask of 0 and -inf; a float mask of 0 and 1 is just added.",
        _BROKEN,
    ),
    "post_softmax_mask": Cause(
        "mask after the softmax",
        "Mask the scores with -inf before the softmax, whose denominator includes every key.",
        _BROKEN,
    ),
    # softmax
    "softmax_queries": Cause("softmax over the queries", _LAST_AXIS, _BROKEN | {"empty_row"}),
    "softmax_heads": Cause("softmax over the heads", _LAST_AXIS, _BROKEN | {"empty_row"}),
    "softmax_batch": Cause(
        "softmax over the batch", _LAST_AXIS, _BROKEN | {"rows_mix", "batch_size", "empty_row"}
    ),
    "no_softmax": Cause(
        "weights are not normalized",
        "Normalize the weights over the keys: scores.softmax(-1).",
        frozenset({"row_sums"}),
    ),
    "row_sums": Cause(
        "rows do not sum to 1",
        "Change nothing about the pattern after the softmax, except dropout in training.",
        rank=5,
    ),
    # scale
    "no_scale": Cause(
        "scores are not scaled",
        "Multiply the scores by 1/sqrt(D), where D is the width of one head.",
        frozenset({"frozen_scores"}),
    ),
    "double_scale": Cause(
        "scores are scaled twice",
        "Scale once: SDPA already multiplies by 1/sqrt(D), so remove your own factor.",
    ),
    "inverse_scale": Cause(
        "scaled by 1/D",
        "Multiply the scores by 1/sqrt(D), not by 1/D (unless you use muP).",
    ),
    "width_scale": Cause(
        "scaled by the model's width",
        "Scale by 1/sqrt(D) with the width of one head, D = C / H, not by 1/sqrt(C).",
    ),
    "inverted_scale": Cause(
        "multiplied by sqrt(D)",
        "Divide the scores by sqrt(D) instead of multiplying.",
        frozenset({"frozen_scores"}),
    ),
    "other_scale": Cause("an unusual scale", "Check that this factor is intended.", rank=3),
    "frozen_scores": Cause(
        "scores vary too much at the start",
        "Scale the scores, or initialize the query and key weights smaller.",
        rank=5,
    ),
    # heads
    "identical_heads": Cause(
        "heads are identical",
        "Initialize each head with its own weights; equal heads get equal gradients and stay so.",
    ),
    "unmerged_heads": Cause(
        "heads merged without transposing",
        "Transpose before merging: y.transpose(1, 2).flatten(2), (B, H, T, D) -> (B, T, C).",
        _SCRAMBLED,
    ),
    "unsplit_heads": Cause(
        "heads split without transposing",
        "Split the channels, then transpose: x.view(B, T, H, D).transpose(1, 2).",
        _SCRAMBLED,
    ),
    "untransposed": Cause(
        "heads split and merged without transposing",
        "Split the channels, then transpose: x.view(B, T, H, D).transpose(1, 2); "
        "transpose back before merging.",
        _SCRAMBLED,
    ),
    "head_order": Cause(
        "key-value heads in the wrong order",
        "Query head h uses key-value head h // (H / H_kv): repeat_interleave, not repeat or tile.",
    ),
    "reads_ahead": Cause(
        "reads the future",
        _SEE_THE_MAP,
        _SEEN_TOO | {"reads_some_ahead"},
        rank=6,
    ),
    "reads_some_ahead": Cause(
        "reads some of the future",
        _SEE_THE_MAP,
        _SEEN_TOO,
        rank=7,
    ),
    "outside": Cause(
        "reads ahead outside attention",
        "Attention is causal; look for a convolution padded on both sides, a normalization or "
        "pooling over time, a router, or a reversed sequence.",
        _AHEAD,
        rank=3,
    ),
    "no_past": Cause(
        "the past is not used",
        "Check that the mask lets a query see earlier keys, and that the attention's output is "
        "added to the residual stream.",
        rank=4,
    ),
    "learned_leak": Cause(
        "a leak that opens with training",
        "A weight that starts at 0, such as a gate, hides a path from the future; see the map.",
        frozenset({"proof"}),
        rank=6,
    ),
    "stress": Cause(
        "the mask fails under large scores",
        "Fill blocked scores with -inf (or torch.finfo(dtype).min).",
        rank=6,
    ),
    "overflow": Cause(
        "overflows under large scores",
        "Subtract the row's maximum before exp, as torch.softmax does.",
    ),
    "not_finite": Cause(
        "not finite",
        "Find the first NaN (torch.autograd.set_detect_anomaly); a softmax over no keys is one.",
        rank=6,
    ),
    "dropout_on": Cause(
        "random in eval mode",
        "Pass dropout_p=self.dropout if self.training else 0.0; the function ignores eval().",
        frozenset({"rows_mix", "prefix_differs", "row_sums", "batch_size", "keeps_state"}),
    ),
    "keeps_state": Cause(
        "logits depend on earlier calls",
        "Reset caches and running statistics between calls.",
        _AHEAD | {"rows_mix", "batch_size", "low_precision"},
    ),
    "rows_mix": Cause(
        "rows of a batch mix",
        "Look for a reshape, or a normalization over the batch, that connects the sequences.",
        _AHEAD | {"batch_size"},
        rank=3,
    ),
    "batch_time_swapped": Cause(
        "batch and time axes exchanged",
        "Use batch_first=True, or transpose (B, T, C) to (T, B, C) before the layer and back.",
        _AHEAD | {"rows_mix", "no_past", "batch_size", "flipped_mask"},
        rank=1,
    ),
    "training_leak": Cause(
        "reads ahead in training mode only",
        "Look for a mask that depends on self.training, or for a normalization over time, such as "
        "BatchNorm, whose statistics include later tokens.",
        frozenset({"proof", "learned_leak"}),
        rank=3,
    ),
    "batch_size": Cause(
        "logits depend on the batch size",
        "Look for a statistic that is taken over the batch.",
        rank=5,
    ),
    "prefix_differs": Cause(
        "a prefix alone gets different logits",
        "Positions, masks and normalizations must not depend on the length of the sequence.",
        rank=6,
    ),
    "cache_differs": Cause(
        "the cache changes the logits",
        "With a cache, positions continue after the cached ones and the mask is aligned to the "
        "right.",
    ),
    "padding_read": Cause(
        "padding is read",
        "Combine the attention mask with the causal one, so that padded keys are blocked.",
    ),
    "low_precision": Cause(
        "low precision changes the logits",
        "Compute scores and softmax in fp32 and fill masks with -inf.",
        rank=4,
    ),
    "not_shifted": Cause(
        "targets are not shifted",
        "y[t] must be x[t + 1]; here the target is the token that the model sees.",
        frozenset({"proof"}),
    ),
    "shifted_twice": Cause(
        "targets are shifted twice",
        "y[t] must be x[t + 1]; shift in the data or in the loss, not in both.",
    ),
    "wrong_targets": Cause("targets are not the next tokens", "y[t] must be x[t + 1]."),
    "proof": Cause(
        "proof of a leak by training",
        "No causal model can predict uniform random tokens; find where it reads the future.",
        rank=7,
    ),
    "swapped_qk": Cause("queries and keys exchanged", "scores = q @ k.mT, queries in rows."),
    "imprecise": Cause(
        "less precise than its inputs",
        "Accumulate the scores and compute the softmax in fp32 at least.",
    ),
    "softcap": Cause("scores are capped", "Remove tanh, or give the reference the same cap."),
    "wrong": Cause(
        "not attention as specified", "Compare with the reference step by step.", rank=8
    ),
}
