"""Errors before a run begins, as one sentence about the user's settings."""

import re
from difflib import get_close_matches

from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attnlab.errors import of_the_disk
from attnlab.files import training_command
from attnlab.training.run_directory import flat

# Groups that set values of other groups, and so are no keys of the configuration.
GROUPS_UNSEEN = ("preset", "experiment")
# Launchers and the packages that bring them.
LAUNCHERS = {
    kind: f"hydra-{kind.partition('_')[0]}-launcher"
    for kind in ("joblib", "submitit_local", "submitit_slurm", "ray")
}


def in_one_sentence(error: BaseException) -> str:
    """The message of an error in one sentence, without misleading advice."""
    if isinstance(error, MissingConfigException) and error.options:
        return missing_file(str(error.missing_cfg_file), list(error.options))
    if isinstance(error, OSError) and error.strerror:
        return of_the_disk(error)
    sentence = " ".join(str(error).split())
    if not isinstance(error, ValueError | HydraException | OmegaConfBaseException | OSError):
        return f"Hydra cannot compose these settings ({type(error).__name__}: {sentence})"
    # Hydra advises to add the misspelled key, which attnlab would refuse as well.
    unknown = re.match(r"Could not override '(\S+)'\. To append ", sentence)
    if unknown is None:
        return sentence
    return unknown_setting(unknown[1], error.__cause__)


def unknown_setting(name: str, cause: BaseException | None) -> str:
    """The message for a setting that does not exist.

    Args:
        name: dotted, as typed.
        cause: OmegaConf's error, which holds the unknown part and the known keys beside it.
    """
    every = f"{training_command()} --cfg job shows them all"
    if not isinstance(cause, OmegaConfBaseException) or not isinstance(
        cause.parent_node, DictConfig
    ):
        return f"{name} is not a setting; {every}"
    unknown, key = str(cause.full_key), str(cause.key)
    known = [*map(str, cause.parent_node), *(GROUPS_UNSEEN if unknown == key else ())]
    near = get_close_matches(key, known, n=1)
    if not near and unknown == name:
        settings = flat(OmegaConf.to_container(cause.parent_node))  # type: ignore[arg-type]
        near = [setting for setting in settings if setting.endswith(f".{key}")]
    if not near:
        return f"{name} is not a setting; {every}"
    meant = unknown.removesuffix(key) + near[0]
    whole = meant + name.removeprefix(unknown)
    if OmegaConf.select(cause.parent_node._get_root(), whole) is not None:
        meant = whole  # the rest of it is right
    return f"{name} is not a setting; did you mean {meant}? ({every})"


def missing_file(path: str, options: list[str]) -> str:
    """The message for an option that its config group does not have.

    Args:
        path: group and name, such as attn/unscald.
        options: the options of the group.
    """
    parts = path.split("/")
    depth = 2 if parts[0] == "hydra" else 1  # a name may have a directory: attn=cross/dot
    group, name = "/".join(parts[:depth]), "/".join(parts[depth:])
    if group == "hydra/launcher" and name in LAUNCHERS:
        return f"{group}={name} is not installed; install it with: pip install {LAUNCHERS[name]}"
    near = get_close_matches(name.lower(), options, n=1)
    known = f"there are {', '.join(sorted(options))}"
    hint = f"did you mean {group}={near[0]}? ({known})" if near else known
    return f"there is no {group}={name}; {hint}"
