"""`attnlab explore --live`: what the page holds of the models, and what is refused."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from attnlab.data.corpora import text
from attnlab.errors import BadInput
from attnlab.pages import live
from attnlab.training.checkpoints import load_model
from tests import command_line
from tests.conftest import VARIANTS
from tests.pages.live_models import REFUSED, SUPPORTED, T, content_of, net_of

NO_WINDOWS = torch.zeros(2, 0, T, dtype=torch.long)


def export(net: Any, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    return live.exported(net, *NO_WINDOWS, dtype, "cannot compute it")


def weights_of(model: dict[str, Any], dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    flat = torch.frombuffer(bytearray(base64.b64decode(model["weights"])), dtype=dtype)
    sizes = [torch.Size(shape).numel() for _, *shape in model["shapes"]]
    parts = flat.split(sizes)
    return {name: x.view(shape) for (name, *shape), x in zip(model["shapes"], parts, strict=True)}


def test_every_variant_is_computed_or_refused() -> None:
    assert sorted(SUPPORTED + REFUSED) == VARIANTS


@pytest.mark.parametrize("variant", SUPPORTED)
def test_a_variant_is_exported(variant: str) -> None:
    net = net_of(variant)
    model = export(net)
    stored = weights_of(model)
    assert stored.keys() == net.state_dict().keys()
    assert all(torch.equal(stored[name], x) for name, x in net.state_dict().items())
    layer: Any = net.blocks[0].attn
    mask = torch.tensor(model["layers"][0]["mask"]).view(T, T)
    assert torch.equal(mask.bool(), layer.mask(torch.zeros(1, T, 1)))
    assert model["layers"][0]["scale"] == layer.scale


@pytest.mark.parametrize("variant", REFUSED)
def test_a_variant_that_the_page_cannot_compute_is_refused(variant: str) -> None:
    with pytest.raises(BadInput, match=r"^cannot compute it: its (attention|kernel|mask) "):
        export(net_of(variant))


def test_parts_of_a_users_own_are_refused() -> None:
    for setting, words in (
        ("model.activation=torch.nn.functional.silu", "its activation is silu"),
        ("attn.score_mod=torch.rsub", "its score_mod is rsub"),
    ):
        with pytest.raises(BadInput, match=words):
            export(net_of("manual", setting))
    net = net_of()
    with torch.no_grad():
        next(net.parameters())[0, 0] = 1e5
    assert export(net)["layers"]
    with pytest.raises(BadInput, match=r"not finite as torch.float16"):
        export(net, torch.float16)


def test_fp16_rounds_the_weights_and_nothing_else() -> None:
    net = net_of()
    exact, rounded = export(net), export(net, torch.float16)
    stored = weights_of(rounded, torch.float16)
    assert all(torch.equal(stored[name], x.half()) for name, x in net.state_dict().items())
    assert {k: v for k, v in exact.items() if k != "weights"} == {
        k: v for k, v in rounded.items() if k != "weights"
    }


def test_runs_of_tinyshakespeare_have_their_validation_loss(
    train: Callable[..., Any], text_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = text(str(text_file))  # in its place: training on it takes a fraction of the time
    monkeypatch.setattr(live, "tinyshakespeare", lambda: corpus)
    folders = [
        str(train(f"attn={name}", folder=f"attn={name}/seed=0").folder)
        for name in ("sdpa", "flipped")
    ]
    ended = command_line.attnlab("explore", *folders, "--live")
    assert (ended.code, ended.out) == (0, f"{folders[0]}/live.html\n")
    page = (Path(folders[0]) / "live.html").read_text(encoding="utf-8")
    content = content_of(page)
    assert [model["name"] for model in content["models"]] == ["sdpa", "flipped"]
    assert content["text"] == live.TEXT and content["reads"] == 16
    x, y = corpus.windows("val", 16, live.WINDOWS)
    assert len(x) == 64
    windows = [[content["alphabet"].index(c) for c in row] for row in content["windows"]]
    assert torch.equal(torch.tensor(windows), torch.cat([x, y[:, -1:]], dim=1))
    for folder, model in zip(folders, content["models"], strict=True):
        net, _ = load_model(folder)
        with torch.no_grad():
            loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten())
        assert model["loss"] == pytest.approx(float(loss), abs=1e-5)
        assert model["note"] == "finished at step 4"


def test_other_texts_have_no_validation_loss_and_markup_stays_text(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = train().folder
    evil = '</script><img src=x onerror="alert(1)">'
    shown = live.live(folder, text=evil)
    content = content_of(shown.page)
    assert content["text"] == evil and "<img" not in shown.page
    assert content["windows"] == [] and content["models"][0]["loss"] is None
    monkeypatch.setattr(live, "LARGEST_FP32", 1000)
    (rounded,) = content_of(live.live(folder).page)["models"]
    assert len(rounded["weights"]) == pytest.approx(
        len(content["models"][0]["weights"]) / 2, abs=4
    )
    monkeypatch.setattr(live, "LARGEST", 2000)
    with pytest.raises(BadInput, match="at most 500 weights"):
        live.live(folder)


def test_models_of_different_alphabets_are_refused(
    train: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "other.txt").write_text("other symbols: 123456789 " * 40)
    first = str(train(folder="a").folder)
    second = str(train(f"data.path={tmp_path / 'other.txt'}", folder="b").folder)
    ended = command_line.attnlab("explore", first, second, "--live")
    assert ended.code == 2 and "same alphabet" in ended.error
    ended = command_line.attnlab("explore", first, first, first)
    assert ended.code == 2 and "explore takes 1 or 2 models, not 3" in ended.error
