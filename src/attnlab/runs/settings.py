"""What each setting means to a run: the one table, and the identity that follows from it."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any, Literal

Settings = dict[str, Any]
Role = Literal["place", "named", "shown", "free", "once", "bundle", "start", "undeclared"]

# Settings that are newer than the first published runs, with the value that changes nothing. With
# it they count as absent, so that the identities and digests of earlier runs stay valid.
NEWER: dict[str, Any] = {
    "model.mlp_ratio": 4,
    "data.eval_lengths": None,
    "attn.gate": None,
    "attn.gate_bias": None,
    "attn.sink": None,
    "attn.top_k": None,
    "attn.forget": None,
    "attn.value_residual": None,
    "attn.value_embeddings": None,
    "attn.exclusive": None,
    "attn.conv": None,
    "attn.length_scale": None,
    "attn.rotary_share": None,
}
# The roles of settings, each with all keys below it. A setting that is missing here can change the
# result, so it is part of a run's identity, stands in the name of the run directory if an override
# changes it, and is the same in a run that continues another.
#   place       says where a run goes, or whether it is refused: no part of its identity
#   shown       only changes what is shown and logged: neither in the identity nor in the name
#   named       the run directory names it in another way than by an override
#   free        may differ in a run that continues another: it affects the steps that are done at
#               most through the learning rate
#   once        is meant for one command: not part of the command that is proposed next
#   bundle      a config group that only sets values of other groups: no key of the configuration
#   start       belongs to the initial weights: no argument of the model, and free for `init_from`
#   undeclared  no part of a claim's declaration
ROLES: dict[str, tuple[Role, ...]] = {
    "name": ("place", "named"),
    "outputs": ("place", "named"),
    "force": ("place", "named", "once"),
    "check_layer": ("place", "named", "undeclared"),
    "attn": ("named",),
    "seed": ("named",),
    "experiment": ("named", "bundle"),
    "preset": ("bundle",),
    "logger": ("shown", "undeclared"),
    "probes": ("shown", "undeclared"),
    "train_loss": ("shown",),
    "trainer.enable_progress_bar": ("shown",),
    "trainer.profiler": ("shown",),
    "trainer.enable_model_summary": ("shown",),
    "trainer.log_every_n_steps": ("shown",),
    "continue_from": ("free", "once"),
    "init_from": ("free",),
    "checkpoint_every": ("free", "undeclared"),
    "callbacks": ("free",),
    "trainer.max_steps": ("free",),
    "trainer.min_steps": ("free",),
    "trainer.max_time": ("free",),
    "trainer.val_check_interval": ("free",),
    "data.eval_lengths": ("free",),
    "optim.min_lr": ("free",),
    "optim.warmup_steps": ("free",),
    "optim.decay": ("free",),
    "model.init": ("start",),
    "model.qk_std": ("start",),
}


def settings_with(role: Role) -> list[str]:
    """The settings of a role, in the order of the table."""
    return [setting for setting, roles in ROLES.items() if role in roles]


def is_below(key: str, *roles: Role) -> bool:
    """Whether a dotted key, or a key above it, has one of the roles."""
    settings = [setting for role in roles for setting in settings_with(role)]
    return any(f"{key}.".startswith(f"{setting}.") for setting in settings)


def identity(settings: Settings) -> Settings:
    """The settings that can change the result of a run, under dotted keys."""
    counted = {key: x for key, x in flat(settings).items() if not is_below(key, "place", "shown")}
    return {key: x for key, x in counted.items() if key not in NEWER or x != NEWER[key]}


def differences(saved: Settings, settings: Settings) -> list[str]:
    """The dotted keys of `identity` in which two configurations of plain values differ."""
    old, new = identity(saved), identity(settings)
    return sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))


def fingerprint(settings: Settings, *inputs: str) -> str:
    """A digest of the configuration and of the SHA-256s of its inputs, corpus and weights."""
    places = settings_with("place")
    counted = {key: value for key, value in settings.items() if key not in places}
    for setting, unchanged in NEWER.items():
        group, key = setting.split(".")
        node = counted.get(group)
        if isinstance(node, dict) and key in node and node[key] == unchanged:
            counted[group] = {name: value for name, value in node.items() if name != key}
    content = json.dumps([counted, *inputs], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def flat(settings: Settings, prefix: str = "") -> Settings:
    """Nested settings under dotted keys."""
    rows: Settings = {}
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            rows |= flat(value, f"{prefix}{key}.")
        else:
            rows[f"{prefix}{key}"] = value
    return rows


def last_of(overrides: Iterable[str]) -> dict[str, str]:
    """The overrides by key; if a key is given twice, the last one counts, as in Hydra."""
    return {override.lstrip("+~").partition("=")[0]: override for override in overrides}
