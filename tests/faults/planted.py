"""The planted faults, with the diagnosis that a checkup must give each."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tests.faults import in_gpt, in_llama, served


@dataclass(frozen=True)
class PlantedFault:
    """One fault, and the models it is planted in.

    Args:
        name: as the two models know it, "name@layer" for one layer only.
        causes: names from `attnlab.checkup.findings.causes()` that count as correct.
        block_size, n_layer, n_head: of both models.
        conf: the file of conf/attn with the same fault, if there is one.
        shift: how far the targets are shifted, for faults in the data.
        models: the models that can have it: "ours", "other", "served".
        published: where real code had it, as owner/repository#issue.
    """

    name: str
    causes: tuple[str, ...]
    block_size: int = 37
    n_layer: int = 2
    n_head: int = 4
    conf: str = ""
    shift: int | None = None
    models: tuple[str, ...] = ("ours", "other")
    published: str = ""

    def build(self, model: str, seed: int = 0) -> nn.Module:
        """Build our GPT, the Llama-like model or the served one with this fault."""
        if model == "served":
            return served.build(self.name, seed)
        if model == "ours":
            return in_gpt.build(self.name, self.block_size, self.n_layer, self.n_head, seed)
        return in_llama.build(self.name, self.n_layer, self.n_head, seed)

    def batch(self) -> tuple[Tensor, Tensor] | None:
        """Inputs and targets, if the fault is in the data; otherwise None."""
        if self.shift is None:
            return None
        ids = torch.randint(29, (4, 24), generator=torch.Generator().manual_seed(0))
        return ids[:, :20], ids[:, self.shift : 20 + self.shift]


FAULTS: tuple[PlantedFault, ...] = (
    PlantedFault("unscaled", ("no_scale",), conf="unscaled"),
    PlantedFault("inverse_scale", ("inverse_scale",), conf="inverse_scale"),
    PlantedFault("double_scale", ("double_scale",)),
    PlantedFault(
        "width_scale",
        ("width_scale",),
        published="aladdinpersson/Machine-Learning-Collection#65",
    ),
    PlantedFault("inverted_scale", ("inverted_scale",)),
    PlantedFault("flipped", ("flipped_mask",), conf="flipped"),
    PlantedFault(
        "strict_flip",
        ("inverted_mask",),
        conf="strict_flip",
        published="rasbt/LLMs-from-scratch#1061",
    ),
    PlantedFault(
        "bidirectional",
        ("no_mask",),
        conf="bidirectional",
        published="facebookresearch/xformers#103",
    ),
    PlantedFault("peek_one", ("off_by_one",), conf="peek_one"),
    PlantedFault("self_blocked", ("self_blocked",)),
    PlantedFault("itself_only", ("no_past",)),
    PlantedFault("zero_fill", ("zero_fill",), conf="zero_fill"),
    PlantedFault(
        "finite_fill",
        ("finite_fill",),
        conf="finite_fill",
        published="huggingface/transformers#17306",
    ),
    PlantedFault("added_bool", ("added_bool",)),
    PlantedFault("post_softmax_mask", ("post_softmax_mask",), conf="post_softmax_mask"),
    PlantedFault(
        "softmax_over_queries",
        ("softmax_queries",),
        conf="softmax_over_queries",
        published="labmlai/annotated_deep_learning_paper_implementations#146",
    ),
    PlantedFault("softmax_over_heads", ("softmax_heads",)),
    PlantedFault("softmax_over_batch", ("softmax_batch",), published="PetrochukM/PyTorch-NLP#2"),
    PlantedFault("no_softmax", ("no_softmax",)),
    PlantedFault("naive_softmax", ("overflow",)),
    PlantedFault("row_gain", ("row_sums",)),
    PlantedFault("unmerged_heads", ("unmerged_heads",), conf="unmerged_heads"),
    PlantedFault("unsplit_heads", ("unsplit_heads",)),
    PlantedFault("untransposed", ("untransposed",)),
    PlantedFault("identical_heads", ("identical_heads",), conf="identical_heads"),
    PlantedFault("identical_qkv", ("identical_heads",), conf="identical_qkv"),
    PlantedFault("tiled_kv", ("head_order",)),
    PlantedFault("strict_flip_filled", ("inverted_mask",), models=("other",)),
    PlantedFault("softcap_after_mask", ("finite_fill",), models=("other",)),
    PlantedFault("detached_output", ("no_gradient",), models=("other",)),
    PlantedFault("tiled_values", ("head_order",), models=("other",)),
    PlantedFault("rotated_values", ("rotated_values",), models=("other",)),
    PlantedFault("dropped_scores", ("dropped_scores",), models=("other",)),
    PlantedFault("dropout_on", ("dropout_on",), published="meta-pytorch/torchtune#1791"),
    PlantedFault("batch_mean", ("rows_mix",)),
    PlantedFault("keeps_state", ("keeps_state",)),
    PlantedFault("counted_from_end", ("prefix_differs",)),
    PlantedFault("padded_conv", ("outside",)),
    PlantedFault("time_norm", ("outside",)),
    PlantedFault("expert_choice", ("outside",)),
    PlantedFault("closed_gate", ("outside", "learned_leak")),
    PlantedFault("bidirectional@2", ("no_mask",), n_layer=4),
    PlantedFault("peek_in_one_head", ("off_by_one",), n_head=8),
    PlantedFault("one_pair", ("single_leaks",)),
    PlantedFault("causal_up_to_32", ("late_leak",), block_size=64),
    PlantedFault(
        "targets not shifted",
        ("not_shifted",),
        shift=0,
        published="huggingface/transformers#3711",
    ),
    PlantedFault("targets shifted twice", ("shifted_twice",), shift=2),
    PlantedFault("batch_first", ("batch_time_swapped",)),
    PlantedFault("window", ("window_ahead",)),
    PlantedFault("blocks", ("block_leak",)),
    PlantedFault("last_key", ("single_leaks",)),
    PlantedFault("odd_scale", ("other_scale",)),
    PlantedFault("fill_1e5", ("finite_fill",), published="TransformerLensOrg/TransformerLens#318"),
    PlantedFault("fill_epsilon", ("zero_fill",), published="hyunwoongko/transformer#10"),
    PlantedFault("mean_key", ("beside_mask",)),
    PlantedFault("next_value", ("beside_mask",)),
    PlantedFault("top_k_first", ("beside_mask",)),
    PlantedFault("own_block_by_mean", ("beside_mask",)),
    PlantedFault("mixed_before_mask", ("beside_mask",)),
    PlantedFault("mixed_after_softmax", ("mixed_after_softmax",)),
    PlantedFault("normed_over_time", ("beside_mask",)),
    PlantedFault("detached_head", ("detached_head",)),
    PlantedFault("detached_scores", ("no_gradient",)),
    PlantedFault("time_batch_norm", ("training_leak",)),
    PlantedFault("open_in_training", ("training_leak",), published="keras-team/keras#23038"),
    PlantedFault("mean_over_time", ("outside",)),
    PlantedFault("next_token", ("outside",)),
    PlantedFault("reversed_sum", ("outside",)),
    PlantedFault("centered_maximum", ("outside",)),
    PlantedFault("both_directions", ("outside",)),
    PlantedFault("row_before", ("rows_mix",)),
    PlantedFault("noise", ("random_in_eval",)),
    PlantedFault("dropped_always", ("dropout_on",)),
    PlantedFault("late_infinity", ("not_finite",)),
    PlantedFault("tied_by_copy", ("tied_by_copy",), models=("other",)),
    PlantedFault("cache_restarts", ("cache_restarts",), models=("served",)),
    PlantedFault(
        "cache_top_left",
        ("cache_mask",),
        models=("served",),
        published="pytorch/pytorch#144858",
    ),
    PlantedFault("cache_forgets", ("cache_dropped",), models=("served",)),
    PlantedFault("cache_unmasked", ("cache_mask",), models=("served",)),
    PlantedFault("cache_top_left_in_steps", ("cache_mask",), models=("served",)),
    PlantedFault("cache_off_by_one", ("cache_off_by_one",), models=("served",)),
    PlantedFault("cache_smeared", ("cache_smeared",), models=("served",)),
    PlantedFault(
        "padding_ignored",
        ("padding_read",),
        models=("served",),
        published="ml-explore/mlx-lm#1906",
    ),
    PlantedFault("padding_of_row_0", ("padding_read",), models=("served",)),
    PlantedFault("padding_inverted", ("padding_inverted",), models=("served",)),
    PlantedFault(
        "labels_shifted_twice",
        ("shifted_twice",),
        models=("served",),
        published="huggingface/transformers#47395",
    ),
    PlantedFault("labels_not_shifted", ("not_shifted",), models=("served",)),
    PlantedFault("labels_backwards", ("wrong_targets",), models=("served",)),
)
