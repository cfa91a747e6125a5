"""Confirm the diagnoses of a checkup for models of transformers, by independent measurements.

python -m tests.checkup.confirm gemma2 rwkv   # prints each diagnosis and its confirmation

Nothing here calls the checkup's detectors: a later token, another row, or padding is changed
in fp64, gradients are computed, scores are taken from transformers' eager attention, and caches
are compared by `generate`.
"""

import math
import re
import sys
from collections.abc import Callable
from contextlib import ExitStack
from copy import deepcopy
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnlab.checkup import Diagnosis, checkup
from attnlab.commands.checkup_target import tiny_transformer
from attnlab.errors import first_line

T = 24
Answer = tuple[bool, str]  # whether the diagnosis is confirmed, and the measurement


def later_token(model: nn.Module, V: int) -> Answer:
    """Change one later token: how far do the logits before it move?"""
    ids = _ids(V)
    with torch.no_grad():
        whole = model(ids).logits
        moved = 0.0
        for j in range(1, T):
            logits = model(_changed(ids, j, V)).logits
            moved = max(moved, _relative(logits[:, :j], whole[:, :j]))
    rounding = 1e-12 if next(model.parameters()).dtype == torch.float64 else 1e-5
    return moved > rounding, f"one later token moves earlier logits by {moved:.1e} of their std"


def finite_fill(model: nn.Module, V: int) -> Answer:
    """Make queries and keys a million times larger: does the mask still hold?"""
    small, _ = later_token(model, V)
    for name, parameter in model.named_parameters():
        if re.search(r"c_attn\.|q_proj|k_proj", name):
            parameter.data *= 1e6
    open_, found = later_token(model, V)
    return open_ and not small, f"with larger weights, {found}"


def no_gradient(model: nn.Module, V: int, headline: str) -> Answer:
    """Backpropagate the usual loss for ten batches in each mode."""
    names = re.findall(r"[\w.]+\.(?:weight|bias|position_bias|\w+)", headline)
    for step in range(20):
        model.train(step % 2 == 0)
        ids = _ids(V, rows=4, seed=step)
        logits = model(ids).logits[:, :-1]
        F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    silent = [n for n in names if grads[n] is None or not bool(grads[n].any())]
    return len(silent) == len(names), f"{len(silent)} of {len(names)} named weights got none"


def padding(model: nn.Module, V: int) -> Answer:
    """Change a padded token on the left and on the right: do real tokens' logits move?"""
    ids, moved = _ids(V, rows=2), []
    for padded in (range(0, T // 3), range(T - T // 3, T)):
        real = torch.ones(2, T, dtype=torch.long)
        real[1, list(padded)] = 0
        other = ids.clone()
        other[1, list(padded)] = (ids[1, list(padded)] + 1) % V
        with torch.no_grad():
            first, second = (model(x, attention_mask=real).logits for x in (ids, other))
        moved.append(_relative(second[real > 0], first[real > 0]))
    found = f"padded tokens move other logits by {moved[0]:.1e} (left), {moved[1]:.1e} (right)"
    return max(moved) > 1e-4, found


def other_rows(model: nn.Module, V: int) -> Answer:
    """Change row 1 of a batch: do the logits of row 0 move?"""
    ids = _ids(V, rows=2)
    other = torch.stack([ids[0], (ids[1] + 1) % V])
    with torch.no_grad():
        moved = _relative(model(other).logits[0], model(ids).logits[0])
    return moved > 1e-6, f"row 1 moves the logits of row 0 by {moved:.1e}"


def cache(model: Any, V: int) -> Answer:
    """Compare `generate` with and without its cache."""
    settings: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "output_logits": True}
    scores = []
    for use_cache in (True, False):
        made = model.generate(
            _ids(V), use_cache=use_cache, return_dict_in_generate=True, **settings
        )
        scores.append(torch.stack(made.logits))
    moved = _relative(*scores)
    return moved > 1e-3, f"generate with the cache moves the logits by {moved:.1e}"


def cached_steps(model: Any, V: int) -> Answer:
    """Pass a text in steps of one and of three tokens with the cache, and at once."""
    ids, moved = _ids(V), []
    for size in (1, 3):
        past, parts = None, []
        with torch.no_grad():
            for part in ids.split(size, 1):
                output = model(part, past_key_values=past, use_cache=True)
                past = output.past_key_values
                parts.append(output.logits)
            moved.append(_relative(torch.cat(parts, 1), model(ids).logits))
    found = f"steps of one and of three tokens with the cache move the logits by {moved[0]:.1e}"
    return max(moved) > 1e-3, f"{found} and {moved[1]:.1e}"


def cached_padding(model: Any, V: int) -> Answer:
    """Change padded tokens on the left: do the logits of the next cached step move?"""
    ids, real = _ids(V, rows=2), torch.ones(2, T, dtype=torch.long)
    real[1, :4] = 0
    other = torch.where(real == 0, _changed(ids, 0, V) + 1, ids) % V
    steps = []
    with torch.no_grad():
        for x in (ids, other):
            past = model(x[:, :-1], attention_mask=real[:, :-1], use_cache=True).past_key_values
            step = model(x[:, -1:], attention_mask=real, past_key_values=past, use_cache=True)
            steps.append(step.logits)
    moved = _relative(*steps)
    return moved > 1e-6, f"padded tokens move the logits of a cached step by {moved:.1e}"


def own_loss(model: Any, V: int) -> Answer:
    """Is the model's loss the cross entropy of labels that are not shifted?"""
    ids = _ids(V, rows=4)
    with torch.no_grad():
        output = model(ids, labels=ids)
        plain = F.cross_entropy(output.logits.flatten(0, 1), ids.flatten())
    same = abs(float(output.loss - plain)) < 1e-6 * float(plain)
    return same, f"the loss is {output.loss:.6g}, without a shift {plain:.6g}"


class Seen(TorchFunctionMode):
    """Keep the inputs of every softmax and the operands of every product of T x T numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.running: list[str] = []  # names of the modules, from the outermost in
        self.softmax_inputs: list[tuple[str, Tensor]] = []  # with the module
        self.operands: list[tuple[str, tuple[Tensor, Tensor]]] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        if func in (F.softmax, torch.softmax, Tensor.softmax) and args[0].ndim == 4:
            self.softmax_inputs.append((self.running[-1], args[0].detach().double()))
        product = func in (torch.matmul, Tensor.matmul, Tensor.__matmul__) and out.ndim == 4
        if product and (*out.shape[-2:], *args[0].shape[-2:-1]) == (T, T, T):
            pair = (args[0].detach().double(), args[1].detach().double())
            self.operands.append((self.running[-1], pair))
        return out


def seen(model: Any, V: int) -> tuple[Seen, dict[str, Tensor]]:
    """What the eager attention computes, and the outputs of all linear maps by name."""
    model.set_attn_implementation("eager")
    outputs: dict[str, Tensor] = {}
    found = Seen()

    def enter(name: str, *_: object) -> None:
        found.running.append(name)

    def leave(name: str, _: object, __: object, output: object) -> None:
        found.running.pop()
        if isinstance(output, Tensor):
            outputs[name] = output.detach().double()

    with torch.no_grad(), found, ExitStack() as handles:
        for name, module in model.named_modules():
            handles.enter_context(module.register_forward_pre_hook(partial(enter, name)))
            handles.enter_context(module.register_forward_hook(partial(leave, name)))
        model(_ids(V))
    return found, outputs


def scale(model: Any, V: int, headline: str) -> Answer:
    """The factor of the scores, in two parts.

    After the product: how the scores of one query for two keys differ, against their products.
    Before it: how long a query and a key of token 0, which rotary positions do not turn, are
    against the outputs of their projections; 1 for keys without a projection of their own.
    """
    place = headline.split(" and ")[0].split(":")[0]
    found, outputs = seen(model, V)
    q, k = (x[0] for x in dict(reversed(found.operands))[place])  # (H, T, D), (H, D, T)
    scores = dict(reversed(found.softmax_inputs))[place]  # (1, H, T, T or more)
    products = (q[:, 1, None] @ (k[..., 0] - k[..., 1])[..., None]).flatten()  # (H,)
    parts = [float(((scores[0, :, 1, 0] - scores[0, :, 1, 1]) / products).median())]
    for names, x in ((("q_proj", "q_b_proj"), q[:, 0]), (("k_proj",), k[:, :, 0])):
        for name in [n for n in outputs if n.startswith(f"{place}.") and n.endswith(names)]:
            before = outputs[name].flatten(0, 1)[0].view(-1, x.shape[-1])
            before = before.repeat_interleave(len(x) // len(before), 0)
            parts.append(float((x.norm(dim=-1) / before.norm(dim=-1)).median()))
    measured, usual = math.prod(parts), q.shape[-1] ** -0.5
    stated = re.search(r"scaled by ([\d.e-]+) instead", headline)
    claimed = 1.0 if stated is None else float(stated[1])
    right = abs(measured / claimed - 1) < 1e-2 < abs(claimed / usual - 1)
    return right, f"the factor is {measured:.4g}, 1/sqrt(D) is {usual:.4g}"


def spread(model: Any, V: int) -> Answer:
    """The standard deviation of the visible scores of the last query."""
    found, _ = seen(model, V)
    rows = [x[0, :, -1] for _, x in found.softmax_inputs if x.shape[-2] == T]
    stds = [float(row[row > -1e30].std()) for x in rows for row in x]
    return max(stds) > 2.5, f"the scores of a query vary by up to {max(stds):.2g}"


def shared_keys(model: Any, V: int) -> Answer:
    """Which query heads have the same keys?"""
    found, _ = seen(model, V)
    keys = found.operands[0][1][1][0]  # (H, D, T)
    same = [h for h in range(len(keys)) if torch.equal(keys[h], keys[0])]
    return 1 not in same and len(same) > 1, f"heads {same} have the keys of head 0"


def no_softmax(model: Any, V: int, headline: str) -> Answer:
    """Run the named module alone: is a softmax called?"""
    place = headline.split(" and ")[0].split(":")[0]
    found, _ = seen(model, V)
    calls = [name for name, _ in found.softmax_inputs if name.startswith(place)]
    return not calls, f"{len(calls)} softmaxes run in {place}"


def confirm(diagnosis: Diagnosis, model: nn.Module, V: int) -> Answer:
    """Confirm a diagnosis by another measurement."""
    model = _precise(model, V)
    given = re.sub(r" \(.*", "", diagnosis.headline)
    checks: dict[str, Callable[[], Answer]] = {
        "finite_fill": lambda: finite_fill(model, V),
        "no_gradient": lambda: no_gradient(model, V, given),
        "padding_read": lambda: padding(model, V),
        "rows_mix": lambda: other_rows(model, V),
        "cache_differs": lambda: cache(model, V),
        "cache_padding": lambda: cached_padding(model, V),
        "not_shifted": lambda: own_loss(model, V),
        "frozen_scores": lambda: spread(model, V),
        "head_order": lambda: shared_keys(model, V),
        "no_softmax": lambda: no_softmax(model, V, given),
    }
    for cause in ("mask", "off_by_one", "dropped", "restarts", "smeared"):
        checks[f"cache_{cause}"] = lambda: cached_steps(model, V)
    for cause in ("no_scale", "other_scale", "inverse_scale", "double_scale", "width_scale"):
        checks[cause] = lambda: scale(model, V, given)
    return checks.get(diagnosis.cause, lambda: later_token(model, V))()


def _precise(model: nn.Module, V: int) -> nn.Module:
    """A copy in fp64, or in fp32 if parts of the model require it."""
    with torch.no_grad():
        try:
            copy = deepcopy(model).double().eval()
            copy(_ids(V))
        except RuntimeError:
            copy = deepcopy(model).float().eval()
    return copy


def sentence(diagnosis: Diagnosis, model: nn.Module, V: int) -> str:
    """The answer in words, for the page."""
    try:
        right, found = confirm(diagnosis, model, V)
    except Exception as error:  # any of the model's
        return f"NOT CONFIRMED: it fails with {first_line(error, with_class=True)}"
    return f"{'confirmed' if right else 'NOT CONFIRMED'}: {found}"


def _ids(V: int, rows: int = 1, seed: int = 0) -> Tensor:
    """Random ids without the first three, which are special in the tiny models."""
    return torch.randint(3, V, (rows, T), generator=torch.Generator().manual_seed(seed))


def _changed(ids: Tensor, j: int, V: int) -> Tensor:
    other = ids.clone()
    other[:, j] = 3 + (ids[:, j] - 2) % (V - 3)
    return other


def _relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.std())


def main() -> None:
    """Examine the model types on the command line, and confirm each diagnosis."""
    for kind in sys.argv[1:]:
        loaded = tiny_transformer(kind)
        report = checkup(loaded.model, vocab_size=loaded.vocab_size, block_size=T)
        for d in report.diagnoses:
            print(f"{kind}: {d.cause}: {d.headline}")
            print(f"   {sentence(d, loaded.model, loaded.vocab_size or 0)}")


if __name__ == "__main__":
    main()
