"""The causes a checkup can name: what to change, and which other findings each one explains."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """What is known of one cause.

    Args:
        title: a few words, for tables.
        advice: what to change.
        explains: causes whose findings are mere symptoms where this one is present.
        rank: the smaller, the more specific; the most specific cause takes the symptoms.
    """

    title: str
    advice: str
    explains: frozenset[str] = frozenset()
    rank: int = 1


_AHEAD = frozenset(
    {
        "reads_ahead",
        "reads_some_ahead",
        "no_mask",
        "prefix_differs",
        "learned_leak",
        "proof",
        "outside",
    }
    | {"stress"}
)
_BROKEN = _AHEAD | {"not_finite", "flipped_mask", "inverted_mask", "off_by_one", "row_sums"}
_BROKEN |= {"stress", "late_leak", "single_leaks", "overflow"}
_SCRAMBLED = _BROKEN | {"no_past"}

CAUSES: dict[str, Cause] = {
    # masks
    "no_mask": Cause(
        "no mask in force",
        "Give the attention a causal mask (key <= query) and check that it reaches the softmax; "
        "an encoder such as BERT has none by design.",
        _AHEAD - {"no_mask"},
        rank=4,
    ),
    "flipped_mask": Cause(
        "mask flipped",
        "Exchange query and key in the mask: tril instead of triu, key <= query.",
        _BROKEN - {"flipped_mask"},
        rank=2,
    ),
    "inverted_mask": Cause(
        "mask polarity inverted",
        "Turn the bool mask around: SDPA reads True as may attend, nn.MultiheadAttention as "
        "blocked.",
        _BROKEN - {"inverted_mask"} | {"no_past", "empty_row"},
        rank=2,
    ),
    "off_by_one": Cause(
        "mask diagonal off by one",
        "Move the diagonal back: torch.tril(ones, diagonal=0), key <= query.",
        _BROKEN - {"off_by_one"},
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
        "Let every query see one key at least, itself; the softmax of nothing is 0/0.",
        frozenset({"not_finite"}),
        rank=3,
    ),
    "single_leaks": Cause(
        "single positions read ahead",
        "Look at how the mask is built at just these positions (slices, windows, padding).",
        _AHEAD,
        rank=2,
    ),
    "late_leak": Cause(
        "reads ahead in long sequences only",
        "Look for a mask, a window or a buffer whose size is a constant smaller than the block.",
        _AHEAD,
        rank=2,
    ),
    "zero_fill": Cause(
        "blocked scores become 0",
        "Fill with -inf: masked_fill(blocked, float('-inf')); a score of 0 still has weight e^0.",
        _BROKEN,
    ),
    "finite_fill": Cause(
        "mask is a finite number",
        "Fill with -inf (or torch.finfo(dtype).min); training can outgrow a number such as -1e4.",
        _BROKEN,
    ),
    "added_bool": Cause(
        "0/1 mask added to the scores",
        "Pass a bool mask, or a float one with 0 and -inf; a float mask of 0 and 1 is only added.",
        _BROKEN,
    ),
    "post_softmax_mask": Cause(
        "mask after the softmax",
        "Mask the scores with -inf before the softmax; its denominator has seen every key.",
        _BROKEN,
    ),
    # softmax
    "softmax_queries": Cause(
        "softmax over the queries",
        "Take the softmax along the last axis of (B, H, T queries, T keys): dim=-1.",
        _BROKEN | {"empty_row"},
    ),
    "softmax_heads": Cause(
        "softmax over the heads",
        "Take the softmax along the last axis of (B, H, T queries, T keys): dim=-1.",
        _BROKEN | {"empty_row"},
    ),
    "softmax_batch": Cause(
        "softmax over the batch",
        "Take the softmax along the last axis of (B, H, T queries, T keys): dim=-1.",
        _BROKEN | {"rows_mix", "batch_size", "empty_row"},
    ),
    "no_softmax": Cause(
        "weights are not normalized",
        "Normalize the weights over the keys: scores.softmax(-1).",
        frozenset({"row_sums"}),
    ),
    "row_sums": Cause(
        "rows do not sum to 1",
        "Nothing may act on the pattern after the softmax but dropout in training.",
        rank=5,
    ),
    # scale
    "no_scale": Cause(
        "scores are not scaled",
        "Multiply the scores by 1/sqrt(D), D the width of one head.",
        frozenset({"frozen_scores"}),
    ),
    "double_scale": Cause(
        "scores are scaled twice",
        "Scale once: SDPA already multiplies by 1/sqrt(D), so leave out your own factor.",
        frozenset({"flat_scores"}),
    ),
    "inverse_scale": Cause(
        "scaled by 1/D",
        "Multiply the scores by 1/sqrt(D), not by 1/D (unless muP is meant).",
        frozenset({"flat_scores"}),
    ),
    "width_scale": Cause(
        "scaled by the model's width",
        "Use the width of one head, D = C / H, in 1/sqrt(D), not C.",
        frozenset({"flat_scores"}),
    ),
    "inverted_scale": Cause(
        "multiplied by sqrt(D)",
        "Divide the scores by sqrt(D) instead of multiplying.",
        frozenset({"frozen_scores"}),
    ),
    "other_scale": Cause("an unusual scale", "Compare the factor with what was meant.", rank=3),
    "frozen_scores": Cause(
        "scores too far apart at the start",
        "Scale the scores or start the query and key weights smaller.",
        rank=5,
    ),
    # heads
    "identical_heads": Cause(
        "heads are identical",
        "Draw every head its own weights; equal heads get equal gradients and stay equal.",
    ),
    "unmerged_heads": Cause(
        "heads merged without transposing",
        "Transpose before flattening: y.transpose(1, 2).flatten(2), (B, H, T, D) -> (B, T, C).",
        _SCRAMBLED,
    ),
    "unsplit_heads": Cause(
        "heads split without transposing",
        "Split the channels, then transpose: x.view(B, T, H, D).transpose(1, 2).",
        _SCRAMBLED,
    ),
    "untransposed": Cause(
        "heads split and merged without transposing",
        "Split the channels, then transpose: x.view(B, T, H, D).transpose(1, 2); back likewise.",
        _SCRAMBLED,
    ),
    "head_order": Cause(
        "key-value heads in the wrong order",
        "Query head h uses key-value head h // (H / H_kv): repeat_interleave, not repeat or tile.",
    ),
    "reads_ahead": Cause(
        "reads the future",
        "Find what lets a position see later ones; the map shows which.",
        frozenset({"prefix_differs", "learned_leak", "proof", "stress", "reads_some_ahead"}),
        rank=6,
    ),
    "reads_some_ahead": Cause(
        "reads some of the future",
        "Find what lets a position see later ones; the map shows which.",
        frozenset({"prefix_differs", "learned_leak", "proof", "stress"}),
        rank=7,
    ),
    "outside": Cause(
        "reads ahead outside attention",
        "Attention is causal; look for a convolution padded on both sides, a normalization or a "
        "pooling over time, or a sequence that is reversed.",
        _AHEAD - {"outside"},
        rank=3,
    ),
    "no_past": Cause(
        "the past is not used",
        "Check that the mask lets a query see earlier keys, and that the attention's output is "
        "added to the stream.",
        rank=4,
    ),
    "learned_leak": Cause(
        "a leak that opens with training",
        "A gate or a weight that starts at 0 hides a path from the future; see the map.",
        frozenset({"proof"}),
        rank=6,
    ),
    "stress": Cause(
        "the mask gives way under large scores",
        "Fill blocked scores with -inf (or torch.finfo(dtype).min).",
        rank=6,
    ),
    "overflow": Cause(
        "overflows under large scores",
        "Subtract the row's maximum before exp, as torch.softmax does.",
    ),
    "not_finite": Cause(
        "not finite",
        "Find the first NaN: torch.autograd.set_detect_anomaly, or a softmax over no keys.",
        rank=6,
    ),
    "dropout_on": Cause(
        "random in eval mode",
        "Pass dropout_p=self.dropout if self.training else 0.0; the function ignores eval().",
        frozenset({"rows_mix", "prefix_differs", "row_sums", "batch_size", "keeps_state"}),
    ),
    "keeps_state": Cause(
        "an answer depends on earlier calls",
        "Reset caches and running statistics between calls, or put the model into eval mode.",
        _AHEAD | {"rows_mix", "batch_size", "low_precision"},
    ),
    "rows_mix": Cause(
        "rows of a batch mix",
        "Find the reshape or normalization that lets one sequence reach another.",
        _AHEAD | frozenset({"prefix_differs", "batch_size", "stress", "proof", "learned_leak"}),
        rank=3,
    ),
    "batch_size": Cause(
        "the answer depends on the batch's size",
        "Find the statistic that is taken over the batch.",
        rank=5,
    ),
    "prefix_differs": Cause(
        "a prefix alone scores differently",
        "Positions, masks and normalizations must not depend on the length of the sequence.",
        rank=6,
    ),
    "cache_differs": Cause(
        "the cache changes the answer",
        "With a cache, positions go on where they were and the mask is aligned to the right.",
    ),
    "padding_read": Cause(
        "padding is read",
        "Combine the attention mask with the causal one, so that padded keys are blocked.",
    ),
    "low_precision": Cause(
        "low precision changes the answer",
        "Compute scores and softmax in fp32 and fill masks with -inf.",
        rank=4,
    ),
    "not_shifted": Cause(
        "targets are not shifted",
        "y[t] must be x[t + 1]; here the model is asked for the token it sees.",
        frozenset({"proof"}),
    ),
    "shifted_twice": Cause(
        "targets are shifted twice",
        "y[t] must be x[t + 1]; shift in the data or in the loss, not in both.",
    ),
    "wrong_targets": Cause("targets are not the next tokens", "y[t] must be x[t + 1]."),
    "proof": Cause(
        "proof of a leak by training",
        "No causal model can predict fresh uniform tokens; find what it reads.",
        rank=7,
    ),
    "swapped_qk": Cause("queries and keys exchanged", "scores = q @ k.mT, queries in rows."),
    "imprecise": Cause(
        "less precise than its inputs", "Accumulate scores and take the softmax in fp32 at least."
    ),
    "softcap": Cause("scores are capped", "Leave out tanh, or give the reference the same cap."),
    "wrong": Cause(
        "not attention as specified", "Compare with the reference, term by term.", rank=8
    ),
}
