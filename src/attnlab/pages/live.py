"""One HTML page in which trained models compute, on any text that a reader types."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.attention import kernels, masks
from attnlab.attention.positions import alibi, log_length
from attnlab.attention.self_attention import SelfAttention
from attnlab.data.corpora import decode, tinyshakespeare
from attnlab.errors import BadInput, printable
from attnlab.model import GPT, RMSNorm, gelu, gelu_tanh, relu_squared
from attnlab.pages.explorer import Explorer, filled, names_of, run_of
from attnlab.probes.capture import eval_mode
from attnlab.training.checkpoints import load_model

READS, WINDOWS = 64, 64  # characters that the page reads; windows of the validation text
LARGEST_FP32, LARGEST = 3 * 2**20, 24 * 2**20  # bytes of weights; above the first, they are fp16
TEXT = "PETRUCHIO:\nGood morrow, Kate; for that's your name, I h"  # of the validation text
# What the page computes, by its name in the script.
NAMES: dict[object, str] = {
    **{part: part.__name__ for part in (GPT, SelfAttention, gelu, gelu_tanh, relu_squared)},
    **{part: part.__name__ for part in (kernels.softmax1, kernels.sigmoid, kernels.linear)},
    **{alibi: "alibi", log_length: "log_length", nn.LayerNorm: "layer", RMSNorm: "rms", None: ""},
    **dict.fromkeys((kernels.sdpa, kernels.manual, kernels.flex), "softmax"),
}


def live(*targets: str | Path, text: str | None = None, trust: bool = False) -> Explorer:
    """Write a page that starts with a text, and computes trained models on any text.

    Targets and `trust` are as for `load_model`. The first model is compared with the others, and
    with itself after changes of its attention. Raises BadInput for models that do not fit.
    """
    paths = [str(target) for target in targets]
    nets, alphabets = zip(*(load_model(path, trust=trust) for path in paths), strict=True)
    alphabet, corpus = alphabets[0], tinyshakespeare()
    if not isinstance(alphabet, str) or any(other != alphabet for other in alphabets):
        raise BadInput("--live needs models with the same alphabet of single characters")
    size = 4 * sum(x.numel() for net in nets for x in net.parameters())
    if size > LARGEST:
        raise BadInput(f"--live takes at most {LARGEST // 4:,} weights; these are {size // 4:,}")
    reads = min(READS, *(net.block_size for net in nets))
    dtype = torch.float16 if size > LARGEST_FP32 else torch.float32
    x, y = corpus.windows("val", reads, WINDOWS if alphabet == corpus.alphabet else 0)
    runs, models = {path: run for path in paths if (run := run_of(path))}, []
    for path, name, net in zip(paths, names_of(paths, runs), nets, strict=True):
        note = f"{runs[path].status} at step {runs[path].step:,}" if path in runs else ""
        model = exported(net, x, y, dtype, f"--live cannot compute {printable(path)}")
        models.append(model | {"name": name, "note": note})
    windows = [decode(row, alphabet) for row in torch.cat([x, y[:, -1:]], dim=1)]
    page = {"text": text or TEXT, "alphabet": alphabet, "reads": reads, "windows": windows}
    return filled("live.html", "Attention, live", page | {"models": models})


def exported(net: GPT, x: Tensor, y: Tensor, dtype: torch.dtype, refusal: str) -> dict[str, Any]:
    """A model as the page reads it, with its loss on windows x and y (N, T), and logits to check.

    Raises BadInput, which begins with the refusal, for what the page cannot compute.
    """

    def named(parts: Mapping[str, object]) -> dict[str, str]:
        for what, part in parts.items():
            if part not in NAMES:
                raise BadInput(f"{refusal}: its {what} is {masks.name_of(part)}")
        return {what: NAMES[part] for what, part in parts.items()}

    model: dict[str, Any] = named({"model": type(net), "norm": type(net.ln_f)})
    model["layers"], numbers = [], "n_head n_kv_head head_size scale shared rotary softcap".split()
    blocks: Any = net.blocks
    for block in blocks:
        layer, parts = block.attn, {"activation": block.mlp.activation}
        names = named(parts | {"attention": type(layer)})
        names |= named({"kernel": layer.kernel, "score_mod": layer.score_mod})
        names |= {key: masks.name_of(vars(layer)[key]) for key in ("may_attend", "head_init")}
        if layer.may_attend in masks.LEAVES_QUERIES_WITHOUT_KEYS:
            raise BadInput(f"{refusal}: its mask leaves a query without keys")
        others = {
            "exclusive": layer.exclusive,
            "rotary_share": layer.rotary and layer.rotated < layer.head_size,
        }
        others |= dict.fromkeys(layer.added - {"gate"}, True)
        if added := sorted(name for name, on in others.items() if on):
            raise BadInput(f"{refusal}: its attention has {', '.join(added)}")
        mask = masks.build_mask(layer.may_attend, x.shape[1]).int().flatten().tolist()
        model["layers"].append(names | {key: vars(layer)[key] for key in numbers} | {"mask": mask})
    weights = torch.cat([weight.detach().flatten() for weight in net.parameters()]).to(dtype)
    if not weights.isfinite().all():
        raise BadInput(f"{refusal}: a weight is not finite as {dtype}")
    with eval_mode(net):
        logits = net(torch.arange(min(x.shape[1], 16))[None] % net.vocab_size)[0]
        loss = float(F.cross_entropy(net(x).flatten(0, 1), y.flatten())) if len(x) else None
    return model | {
        "loss": loss,
        "logits": [[round(logit, 5) for logit in row] for row in logits.tolist()],
        "smear": len(net.smear),
        "eps": net.ln_f.eps if isinstance(net.ln_f, nn.LayerNorm) else 1e-5,
        "shapes": [[name, *weight.shape] for name, weight in net.named_parameters()],
        "weights": base64.b64encode(weights.numpy().tobytes()).decode(),
    }
