"""From the words of a command to a configuration, or to one sentence that says what is wrong with
them and which word was probably meant."""

import re
import shlex
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from attnlab.errors import BadInput, first_line
from attnlab.installation import lab_path
from attnlab.settings.roles import flat
from attnlab.settings.trainer_arguments import ARGUMENTS
from attnlab.settings.typed import for_hydra

# Words of other programs for settings of attnlab.
SYNONYMS = {
    "attention": "attn",
    "batch": "data.batch_size",
    "context": "model.block_size",
    "context_length": "model.block_size",
    "corpus": "data",
    "d_model": "model.n_embd",
    "dataset": "data",
    "device": "trainer.accelerator",
    "embed_dim": "model.n_embd",
    "epochs": "trainer.max_steps",
    "experiment_name": "name",
    "gpu": "trainer.accelerator",
    "heads": "model.n_head",
    "hidden_size": "model.n_embd",
    "iterations": "trainer.max_steps",
    "layers": "model.n_layer",
    "learning_rate": "optim.lr",
    "max_iters": "trainer.max_steps",
    "num_heads": "model.n_head",
    "num_layers": "model.n_layer",
    "optimizer": "optim",
    "seq_len": "model.block_size",
    "steps": "trainer.max_steps",
    "variant": "attn",
    "wd": "optim.weight_decay",
}
FORM = "must have the form KEY=VALUE, such as attn=unscaled"


def composed_from(words: Sequence[str], config_dir: str | None = None) -> tuple[DictConfig, str]:
    """What `python train.py` composes from the words of its command, and the name of the variant.

    `config_dir` holds settings of the user's own, as --config-dir. BadInput with the sentence of
    the command.
    """
    overrides = [*words]
    if config_dir is not None:
        folder = Path(config_dir).expanduser().resolve()
        if not folder.is_dir():
            raise BadInput(f"config_dir = {config_dir} is not a directory")
        overrides.append(f'hydra.searchpath=["file://{folder}"]')
    try:
        return configuration_of(overrides)
    except HydraException as error:
        raise BadInput(explanation(error, overrides)) from error


def explanation(error: Exception, words: Sequence[str]) -> str:
    """What is wrong with the words of a command and what to type instead, as one sentence."""
    if isinstance(error, MissingConfigException):
        return unknown_option(error)
    if isinstance(error, OverrideParseException):
        return unreadable(error.override, str(error), words)
    message = first_line(error)
    if match := re.match(r"Could not override '(.+)'", message):
        return unknown_key(match[1], words)
    if match := re.match(r"Ambiguous value for argument '(.+)'", message):
        return f"{match[1]} has several values; add -m to train each of them"
    if match := re.match(r"Multiple values for (\w+)", message):
        return f"{match[1]} is in the configuration; write {match[1]}=... without +"
    if message.startswith("Config group override must be a string"):
        wrong = [word for word in words if word.partition("=")[0] in config_groups()]
        return f"{' '.join(wrong)} must name a file of a group, such as attn=unscaled"
    return message


def unknown_key(key: str, words: Sequence[str]) -> str:
    """What to say of a setting that does not exist."""
    typed = [word for word in words if word.lstrip("+~").partition("=")[0] == key]
    value = typed[0].partition("=")[2] if typed else ""
    group, _, name = key.partition(".")
    if group == "trainer" and name in ARGUMENTS:
        return refusal_of_argument(key, words) or (
            f"{key} is not in the configuration; add it by +{key}={value}"
        )
    near = " or ".join(f"{name}={value}" for name in similar_settings(key))
    advice = f"did you mean {near}?" if near else "--cfg job lists all settings"
    return f"{key} is not a setting; {advice}"


def refusal_of_argument(key: str, words: Sequence[str]) -> str:
    """Why a run cannot have an argument of the Trainer as it was typed, "" if it can."""
    # Torch takes most of the time of an answer, and most answers need none of it.
    from attnlab.settings.bind import bound_trainer
    from attnlab.settings.types import read_settings

    own = [f"+{word}" for word in words if word.partition("=")[0] == key]
    others = [word for word in words if word[0] != "-" and word.partition("=")[0] != key]
    for overrides in ([*others, *own], own):
        try:
            bound_trainer(read_settings(configuration_of(overrides)[0]).trainer)
        except BadInput as error:
            return str(error) if key in str(error) else ""
        except (HydraException, OmegaConfBaseException):  # of another word, or a sweep
            continue
        break
    return ""


def similar_settings(key: str) -> list[str]:
    """The settings and groups that a key probably means."""
    if same := named_settings(key):
        return same
    last = key.rpartition(".")[2].lower()
    known = [*config_groups(), *default_settings()]
    whole = get_close_matches(key.lower(), known, n=1, cutoff=0.75)
    if whole:
        return whole
    by_last = {name.rpartition(".")[2]: name for name in known}
    return [by_last[name] for name in get_close_matches(last, by_last, n=1)]


def named_settings(key: str) -> list[str]:
    """The settings and groups whose name, without its group, is the last part of a key."""
    last = key.rpartition(".")[2].lower()
    if last in SYNONYMS:
        return [SYNONYMS[last]]
    known = [*config_groups(), *default_settings()]
    return [name for name in known if name.rpartition(".")[2] == last]


def unknown_option(error: MissingConfigException) -> str:
    """What to say of a choice that a group does not have."""
    group, _, name = str(error.missing_cfg_file).rpartition("/")
    options = list(error.options or [])
    if not options:
        return first_line(error)
    alike = [option for option in options if option[:2] == name[:2]]
    near = get_close_matches(name, options, n=1, cutoff=0.5)
    near += get_close_matches(name, alike, n=1, cutoff=0.4)  # a typing error begins right
    if group == "data" and "." in name:
        return f"data={name} is unknown; for a text of your own: data=text data.path={name}"
    if near:
        meant = " or ".join(f"{group}={option}" for option in dict.fromkeys(near))
        return f"{group}={name} is unknown; did you mean {meant}?"
    return f"{group}={name} is unknown; {group} is one of {', '.join(options)}"


def unreadable(override: str, message: str, words: Sequence[str]) -> str:
    """What to say of a word that Hydra's grammar does not have."""
    known = {*config_groups(), *default_settings(), *SYNONYMS}
    if "missing EQUAL" in message or override in known:
        following = list(words[words.index(override) + 1 :]) if override in words else []
        if following[:1] == ["="]:
            following = following[1:]
        if override in known and following and "=" not in following[0]:
            key = SYNONYMS.get(override, override)
            return f"{override} {FORM}; did you mean {key}={following[0]}?"
        by_sign = re.fullmatch(r"([\w.]+)[:\s]+(.+)", override)
        if by_sign:
            return f"{override} {FORM}; did you mean {by_sign[1]}={by_sign[2]}?"
        for group in config_groups():
            if (lab_path("conf") / group / f"{override}.yaml").is_file():
                return f"{override} {FORM}; did you mean {group}={override}?"
        near = similar_settings(override)
        return f"{override} {FORM}; did you mean {near[0]}=...?" if near else f"{override} {FORM}"
    key, _, value = override.partition("=")
    if value.startswith("="):
        return f"{override} has two signs =; write {key}={value.lstrip('=')}"
    if "=" in value and key in config_groups():
        return f"{override} has two signs =; did you mean {key}.{value}?"
    reason = message.removeprefix(f"Error parsing override '{override}'").strip()
    reason = reason.partition("\n")[0]
    return f"{override} cannot be read ({reason}); quote a text twice: '{key}=\"...\"'"


def hint_on_options(words: Sequence[str]) -> str:
    """What to type where argparse refuses the options of a command; empty if that is unknown."""
    for n, word in enumerate(words):
        name, _, value = word.lstrip("-").partition("=")
        named = named_settings(name.replace("-", "_")) if word.startswith("-") else []
        if named:
            value = value or " ".join(words[n + 1 : n + 2])
            return f"A setting has no dashes: {named[0]}={value}\n"
    # argparse takes all settings from one place.
    for option in ("-m", "--multirun"):
        if option in words[1:-1]:
            settings = shlex.join(word for word in words if word != option)
            return f"Put {option} before all settings: {option} {settings}\n"
    return ""


def config_groups() -> list[str]:
    """The groups of settings that attnlab has."""
    folders = (folder for folder in lab_path("conf").iterdir() if folder.is_dir())
    return sorted(folder.name for folder in folders if folder.name != "hydra")


def default_settings() -> list[str]:
    """The settings of the default configuration, with their groups."""
    plain = OmegaConf.to_container(configuration_of([])[0])
    assert isinstance(plain, dict)
    return list(flat({str(key): value for key, value in plain.items()}))


def configuration_of(overrides: Sequence[str]) -> tuple[DictConfig, str]:
    """What Hydra composes from overrides, and the name of the variant; Hydra's errors."""
    with initialize_config_dir(str(lab_path("conf").resolve()), version_base="1.3"):
        cfg = compose("train", [*map(for_hydra, overrides)], return_hydra_config=True)
    variant = str(cfg.hydra.runtime.choices["attn"]).replace("/", "-")
    with open_dict(cfg):
        del cfg["hydra"]
    return cfg, variant
