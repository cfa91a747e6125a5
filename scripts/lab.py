"""Build docs/lab.html, the lab in a browser, from lab/ and the published experiments.

    python scripts/lab.py              # writes docs/lab.html
    python scripts/lab.py --check      # exit code 1 if docs/lab.html is not what would be built

The page is one file: lab/engine and lab/page, the packaged text, and for each lesson of
lab/page/lessons.yaml what the repository says today: settings composed by Hydra, published
losses by seed, the verdict on the claim. No number on the page is written by hand.
"""

import argparse
import base64
import gzip
import json
import lzma
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from attnlab.claims.claim import Claim
from attnlab.claims.claim_page import verdict_in_words
from attnlab.claims.judge import DECIDE
from attnlab.claims.judged_claim import judge_files
from attnlab.claims.reach import reach_line
from attnlab.claims.rows import Rows
from attnlab.settings.roles import flat, in_present_words

ROOT = Path(__file__).resolve().parents[1]
ENGINE = ROOT / "lab" / "engine"
PAGE_SOURCE = ROOT / "lab" / "page"
PAGE = ROOT / "docs" / "lab.html"
TEXT = ROOT / "src" / "attnlab" / "data" / "tinyshakespeare.txt.xz"

# The scripts of the worker, in the order of their use; the page shows them in the order of SHOWN.
SCRIPTS = (
    *("rng.js", "operations.js", "layers.js", "attention.js", "model.js", "training.js"),
    *("measures.js", "worker.js"),
)
# The scripts of the page, in the order of their use.
PAGE_SCRIPTS = (
    *("elements.js", "addresses.js", "texts.js", "heads.js", "words.js"),
    *("models.js", "charts.js", "maps.js", "page.js"),
)
# The settings that the engine reads, by group.
READ = {
    "model": ["n_layer", "n_head", "n_embd", "block_size", "init"],
    "attn": ["kernel", "scale", "may_attend", "window", "heads", "head_init"],
    "data": ["batch_size"],
    "optim": ["lr", "min_lr", "warmup_steps", "betas", "weight_decay"],
    "trainer": ["max_steps"],
}
# Settings that must be as the engine has them.
FIXED = {
    "model.dropout": 0.0,
    "model.bias": False,
    "model.norm": "layer_norm",
    "model.activation": "gelu",
    "model.mlp_ratio": 4,
    "model.positions": "learned",
    "model.smear": 0,
    "model.wide_embedding": None,
    "model.qk_std": None,
    "attn._target_": "SelfAttention",
    "attn.head_size": None,
    "attn.n_kv_head": None,
    "attn.shared": None,
    "attn.qk_norm": False,
    "attn.rotary": None,
    "attn.rotary_share": None,
    "attn.score_mod": None,
    "attn.softcap": None,
    "data._target_": "attnlab.data.corpus.tinyshakespeare",
    "data.tokenizer": "characters",
    "optim._target_": "attnlab.training.optimizers.adamw",
    "optim.decay": "attnlab.training.optimizers.cosine",
    "trainer.accumulate_grad_batches": 1,
    "trainer.gradient_clip_val": 1.0,
}
# Overrides that change what is measured or where, and not what is trained.
MEASURING = re.compile(r"probes|logger|train_loss|trainer\.(accelerator|val_check_interval)")


@cache
def composed(overrides: tuple[str, ...]) -> dict[str, Any]:
    """What `python train.py` composes from overrides, under dotted keys."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        settings = OmegaConf.to_container(compose("train", [*overrides]), resolve=True)
    return flat(in_present_words(settings))


def engine_settings(overrides: Iterable[str]) -> dict[str, Any]:
    """The settings of a run that the engine reads; ValueError if it cannot do what others ask."""
    settings = composed(tuple(overrides))
    for key, value in FIXED.items():
        if settings[key] != value:
            raise ValueError(f"the engine has no {key} = {settings[key]}, only {value}")
    return {
        group: {key: settings[f"{group}.{key}"] for key in keys} for group, keys in READ.items()
    }


@cache
def plain_value(text: str) -> Any:
    """The value of an override."""
    return yaml.safe_load(text)


@dataclass(frozen=True)
class Published:
    """The published rows of a claim, found by what was trained."""

    claim: Claim
    rows: Rows

    @classmethod
    def read(cls, name: str) -> "Published":
        """The claim in experiments/<name>."""
        claim = Claim.read(ROOT / "experiments" / name / "claim.yaml")
        return cls(claim, Rows(claim.folder / "rows.jsonl"))

    def changes(self, overrides: Iterable[str]) -> dict[str, Any]:
        """What overrides change of the claim's base; two runs train the same if these agree."""
        base = composed((*self.claim.base, "attn=sdpa")) | {"attn": "sdpa"}
        found = {}
        for override in overrides:
            key, _, text = override.partition("=")
            if override in self.claim.base or MEASURING.match(key):
                continue
            value = plain_value(text)
            if base.get(key) != value:
                found[key] = value
        return found

    def losses(self, overrides: Iterable[str]) -> dict[int, float]:
        """Validation losses by seed of the runs that trained the same, without those of pilots."""
        wanted = self.changes(overrides)
        found = {}
        for run, row in self.rows.items():
            loss = row["values"].get("val_loss")
            declared = self.claim.first_seed <= run.seed < 1000
            if loss is not None and declared and self.changes(run.overrides) == wanted:
                found[run.seed] = loss
        return dict(sorted(found.items()))

    def verdict(self, only: str | None) -> dict[str, Any]:
        """The sentence, the verdict on it, and where it is true or false, with its seeds; or one
        prediction and whether it is true, where the sentence is not about the lesson."""
        judged = judge_files(self.claim)
        says = f"“{self.claim.says}” {verdict_in_words(judged).rstrip('.')}."
        predictions = self.claim.predictions
        shown = [key for key, p in predictions.items() if p.role in DECIDE]
        if only is not None:
            shown = [only]
            says = predictions[only].says
        lines = []
        for key, evidence in judged.evidence().items():
            if key not in shown:
                continue
            prediction = predictions[key]
            word = "Undecided"
            if not evidence.is_undecided:
                word = "True" if evidence.is_for else "False"
            tallies = [f.tally for f in judged.findings if f.key == key]
            agree = min(tally.agree for tally in tallies)
            seeds = f"{agree} of {tallies[0].n} seeds agree"
            lines.append([word, prediction.where or prediction.says.rstrip("."), seeds])
        return {"says": says, "lines": lines, "reach": f"{reach_line(judged, shown)}."}


@cache
def published_by(claim: str) -> Published:
    """What experiments/<claim> publishes."""
    return Published.read(claim)


class Numbers:
    """The numbers that an explanation names in braces, such as {median[none]:.2f}."""

    def __init__(self, kind: str, published: Published, settings: list[str]) -> None:
        self.kind = kind
        self.published = published
        self.settings = settings

    def __getitem__(self, words: str) -> float:
        arms = [word for word in words.split() if "=" not in word]
        own = [word for word in words.split() if "=" in word]
        losses = []
        for arm in arms:
            overrides = {word.partition("=")[0]: word for word in [*self.settings, *own]}
            losses.append(self.published.losses([f"attn={arm}", *overrides.values()]))
        seeds = sorted(set.intersection(*(set(of) for of in losses)))
        if not seeds:
            raise ValueError(f"no published rows: {words} of {self.published.claim.folder.name}")
        if self.kind == "seeds":
            return len(seeds)
        if self.kind == "median":
            return median(losses[0][seed] for seed in seeds)
        return median(losses[0][seed] - losses[1][seed] for seed in seeds)


@dataclass(frozen=True)
class LessonRun:
    """One of the two runs of a lesson, as `python train.py` makes it."""

    variant: str
    label: str
    overrides: tuple[str, ...]
    seed: int
    rounding: float  # by how much its loss differs in PyTorch itself, see lessons.yaml


def read_entries() -> dict[str, dict[str, Any]]:
    """The lessons of lessons.yaml by name."""
    return dict(yaml.safe_load((PAGE_SOURCE / "lessons.yaml").read_text(encoding="utf-8")))


def runs_of(name: str) -> list[LessonRun]:
    """The two runs of a lesson."""
    entry = read_entries()[name]
    claim = published_by(entry["claim"]).claim
    return [
        LessonRun(
            variant,
            label,
            (*claim.base, *entry.get("settings", []), f"attn={variant}"),
            claim.first_seed,
            entry.get("rounding", {}).get(variant, 0.0),
        )
        for variant, label in entry["arms"].items()
    ]


def read_lessons() -> list[dict[str, Any]]:
    """The lessons with everything that the page says about them."""
    return [lesson(name, entry) for name, entry in read_entries().items()]


def lesson(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """One lesson: its words, the settings of both models, published losses, verdict, command."""
    published = published_by(entry["claim"])
    own = entry.get("settings", [])
    numbers = {kind: Numbers(kind, published, own) for kind in ("median", "gap", "seeds")}
    words = {
        key: entry[key]
        for key in ("switch", "question", "answers", "meaning", "judge", "explains")
    }
    return words | {
        "id": name,
        "claim": entry["claim"],
        "seed": published.claim.first_seed,
        "arms": [
            arm(run, entry["claim"], entry.get("same_run", {}).get(run.variant))
            for run in runs_of(name)
        ],
        "explained": entry["explained"].format(**numbers),
        "condition": entry["condition"].format(**numbers),
        "verdict": published.verdict(entry.get("prediction"))
        if entry.get("verdict", True)
        else None,
        "command": " ".join(["python train.py -m", *published.claim.base, *own]),
    }


def arm(run: LessonRun, claim: str, same_run: str | None) -> dict[str, Any]:
    """One of the two models: settings, and published losses of its claim. If that has none, those
    of another claim that trains the same; ValueError if it does not."""
    source = claim
    losses = published_by(claim).losses(run.overrides)
    if not losses and same_run:
        other = published_by(same_run)
        overrides = (*other.claim.base, f"attn={run.variant}")
        if engine_settings(overrides) != engine_settings(run.overrides):
            raise ValueError(f"{same_run} and {claim} train attn={run.variant} differently")
        source = same_run
        losses = other.losses(overrides)
    return {
        "variant": run.variant,
        "name": run.label,
        "settings": engine_settings(run.overrides),
        "published": losses,
        "source": source,
        "rounding": run.rounding,
    }


def own_settings() -> dict[str, Any]:
    """What an experiment of one's own may choose, with the settings of each choice."""
    own = yaml.safe_load((PAGE_SOURCE / "own.yaml").read_text(encoding="utf-8"))
    variants = [
        {"variant": name, "about": about, "attn": own_run([f"attn={name}"])["attn"]}
        for name, about in own["variants"].items()
    ]
    sizes = [
        {"id": name, **size, "settings": own_run(size["words"].split())}
        for name, size in own["sizes"].items()
    ]
    first = sizes[0]["settings"]
    rate_and_steps = {"rate": first["optim"]["lr"], "steps": first["trainer"]["max_steps"]}
    defaults = own["defaults"] | rate_and_steps
    return own | {"variants": variants, "sizes": sizes, "defaults": defaults}


def own_run(words: list[str]) -> dict[str, Any]:
    """The settings of a small model with further words."""
    return engine_settings(["preset=micro", *words])


def packed_text() -> str:
    """The text as gzip in base64, which browsers unpack."""
    text = lzma.decompress(TEXT.read_bytes())
    return base64.b64encode(gzip.compress(text, 9, mtime=0)).decode()


def unpacked(page: str) -> tuple[str, bytes]:
    """A page without its packed text, and the text: versions of zlib pack differently."""
    before, packed, after = re.split(r"(?<=<script type=\"text/plain\" id=\"text\">)([^<]*)", page)
    return before + after, gzip.decompress(base64.b64decode(packed))


def plain_script(module: str) -> str:
    """A module as a part of one script, which browsers also run from a file."""
    without = re.sub(r"^import [^;]*;$", "", module, flags=re.MULTILINE)
    return re.sub(r"^export ", "", without, flags=re.MULTILINE).strip()


def data_script(kind: str, attributes: str, content: str) -> str:
    """A script element that holds data; `</` would end it."""
    if "</script" in content.lower():
        raise ValueError(f"{attributes} contains the end of a script")
    return f'<script type="{kind}" {attributes}>{content}</script>'


def built_page() -> str:
    """The page as one file."""

    def engine(name: str) -> str:
        return (ENGINE / name).read_text(encoding="utf-8")

    def source(name: str) -> str:
        return (PAGE_SOURCE / name).read_text(encoding="utf-8")

    def as_json(content: Any) -> str:
        return json.dumps(content, ensure_ascii=False).replace("<", "\\u003c")

    wasm = "".join(engine("operations.wasm.base64").split())
    data = [
        *(data_script("text/plain", f'data-source="{name}"', engine(name)) for name in SCRIPTS),
        data_script("application/json", 'id="lessons"', as_json(read_lessons())),
        data_script("application/json", 'id="own-settings"', as_json(own_settings())),
        data_script("text/plain", 'id="wasm"', wasm),
        data_script("text/plain", 'id="text"', packed_text()),
    ]
    page = source("page.html")
    parts = {
        "/*STYLE*/": source("page.css").strip(),
        "<!--DATA-->": "\n".join(data),
        "/*PAGE*/": "\n".join(plain_script(source(name)) for name in PAGE_SCRIPTS),
    }
    for place, content in parts.items():
        before, found, after = page.partition(place)
        if not found:
            raise ValueError(f"page.html has no {place}")
        page = before + content + after
    return page


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    page = built_page()
    if parser.parse_args().check:
        same = unpacked(PAGE.read_text(encoding="utf-8")) == unpacked(page)
        print(f"{PAGE} is {'up to date' if same else 'not what python scripts/lab.py builds'}")
        return 0 if same else 1
    PAGE.write_text(page, encoding="utf-8")
    print(f"{PAGE}: {len(page.encode()) / 1000:.0f} KB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
