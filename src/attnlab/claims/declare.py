"""Declarations: what a claim fixed before its first run, in a file that is committed.

`experiments/<claim>/declared.json` holds thresholds, arms with their resolved settings, seeds, the
last look, and a digest of the claim's code; one reference loss per arm pins the training code. Any
difference makes a new version; the old versions keep their verdicts.
"""

import json
import math
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from attnlab.claims.claim import Claim, Measured, Prediction, RunMetric, Trained
from attnlab.claims.configs import NOT_AN_ARMS, ConfigResolver
from attnlab.claims.judge import decide, declared_looks
from attnlab.claims.rows import plain
from attnlab.claims.source_digest import source_digest
from attnlab.errors import BadInput
from attnlab.files import read_json, write_json
from attnlab.training.run_directory import flat, now

# Groups of settings that do not change what a run computes.
WITHOUT_INFLUENCE = ("logger", "probes", "checkpoint_every")
REFERENCE_STEPS = 4
TOLERANCE = 1e-4  # nats between the reference losses of two machines
MISSING = object()


@dataclass
class Declared:
    """A claim's declaration, compared with the claim as it is now."""

    version: int = 0  # 0 where nothing was declared
    changed: list[str] = field(default_factory=list)  # if anything did, runs are exploratory
    content: dict[str, Any] = field(default_factory=dict)  # of declared.json
    # Arm -> the digest that its runs are known by, of arms that did not change.
    arm_digests: dict[str, str] = field(default_factory=dict)

    @property
    def exploratory(self) -> str:
        """Why runs are not part of a declared test; empty where they are."""
        if not self.version:
            return "nothing was declared before the runs"
        if self.changed:
            return f"changed since version {self.version} was declared: {'; '.join(self.changed)}"
        return ""

    def covers(self, claim: Claim, prediction: Prediction, seed: int) -> bool:
        """Whether a row belongs to the declared test."""
        return not self.exploratory and seed in claim.declared_seeds(prediction)


def declaration(claim: Claim, resolve: ConfigResolver) -> dict[str, Any]:
    """Everything that decides a verdict, as JSON; Hydra's directory must be open."""
    arms = resolve.arms(claim)
    settings = {name: _settings(config.settings) for name, config in arms.items()}
    first = next(iter(settings.values()), {})
    common = {
        key: value
        for key, value in first.items()
        if all(each.get(key, MISSING) == value for each in settings.values())
    }
    content = {
        "says": claim.says,
        "looks": declared_looks(claim.last_look),
        "first_seed": claim.first_seed,
        "predictions": {each.name: _prediction(each) for each in claim.predictions},
        "code": _code(claim),
        "settings": common,
        "arms": {
            name: {
                "overrides": list(config.overrides),
                "digest": config.digest,
                "corpus": config.corpus,
                "settings": {k: v for k, v in settings[name].items() if k not in common},
            }
            for name, config in arms.items()
        },
    }
    return dict(json.loads(json.dumps(plain(content))))


def read_declared(claim: Claim, resolve: ConfigResolver) -> Declared:
    """Read a claim's declaration and compare it with the claim as it is now.

    Raises:
        BadInput: the file is damaged.
    """
    file = resolve.paths.declared(claim.name)
    if not file.exists():
        return Declared()
    try:
        content = read_json(file)
        then, version = content["declaration"], int(content["version"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{file} is damaged ({error}); restore it from git") from error
    today = declaration(claim, resolve)
    defaults = _settings(resolve(()).settings)
    changed = _differences(then, today, defaults)
    digests = {
        name: then["arms"][name]["digest"]
        for name in today["arms"]
        if name in then["arms"] and not _arm_differences(name, then, today, defaults)
    }
    return Declared(version, changed, content, digests)


def declare(claim: Claim, resolve: ConfigResolver, losses: Mapping[str, float]) -> Declared:
    """Write a new version of a claim's declaration, unless nothing changed.

    `losses` are the reference losses of the arms. Returns the declaration that is now on disk.
    """
    old = read_declared(claim, resolve)
    changed = [*old.changed, *changed_losses(old, losses)]
    if old.version and not changed:
        return old
    history = list(old.content.get("history", []))
    published = resolve.paths.published(claim.name)
    last = read_json(published) if published.exists() else {}
    if old.version or last:
        entry = {"version": old.version or last.get("version", 1)}
        entry |= {"time": old.content.get("time"), "changed": old.content.get("changed", [])}
        same = last.get("version") == entry["version"]
        history.append(entry | {"verdict": last["verdict"] if same else "not published"})
    version = history[-1]["version"] + 1 if history else 1
    content = {
        "version": version,
        "time": now(),
        "changed": changed if old.version else ["the first declaration that is kept"],
        "declaration": declaration(claim, resolve),
        "reference_losses": dict(losses),
        "history": history,
    }
    write_json(resolve.paths.declared(claim.name), content)
    return read_declared(claim, resolve)


def changed_losses(declared: Declared, losses: Mapping[str, float]) -> list[str]:
    """Arms whose reference loss is not the declared one: the training code has changed."""
    then = declared.content.get("reference_losses", {})
    return [
        f"reference loss of {arm}: {then[arm]:.6f} -> {loss:.6f}"
        for arm, loss in losses.items()
        if arm in then and not math.isclose(then[arm], loss, rel_tol=0, abs_tol=TOLERANCE)
    ]


def check_committed(file: Path, commits: Iterable[str | None]) -> None:
    """Refuse a declaration that is not in the commits at which the runs were made.

    Raises:
        BadInput: with the first commit that does not hold this declaration.
    """
    now_declared = read_json(file)["declaration"]
    for commit in sorted({str(commit) for commit in commits}):
        command = ["git", "-C", str(file.parent), "show", f"{commit}:./{file.name}"]
        shown = subprocess.run(command, capture_output=True, text=True, check=False)
        then = json.loads(shown.stdout).get("declaration") if shown.returncode == 0 else None
        if then != now_declared:
            raise BadInput(
                f"{file} is not part of commit {commit[:12]}, at which runs were made; commit the "
                "declaration first, then run without the earlier rows and run directories"
            )


def _settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    apart = (*WITHOUT_INFLUENCE, *NOT_AN_ARMS)
    return flat({key: value for key, value in settings.items() if key not in apart})


def _prediction(prediction: Prediction) -> dict[str, Any]:
    criterion = prediction.criterion
    content: dict[str, Any] = {
        "says": prediction.says,
        "criterion": {"kind": type(criterion).__name__, **asdict(criterion)},
        "role": prediction.role,
        "bearing": prediction.bearing,
        "where": prediction.where,
        "budget": prediction.budget,
        "seeds": prediction.seeds,
    }
    if isinstance(prediction, Measured):
        content["measure"] = [prediction.measure.__name__, prediction.value]
    if isinstance(prediction, Trained):
        metric = prediction.metric
        content["arms"] = [arm.name for arm in prediction.arms]
        content["contrast"] = prediction.contrast.__name__
        content["given"] = dict(prediction.given)
        content["metric"] = metric
        if isinstance(metric, RunMetric):
            content["metric"] = [metric.read.__name__, metric.value, metric.diverged]
    return content


def _code(claim: Claim) -> dict[str, str]:
    """Function -> digest of it and of what it calls; the rule of the judge is one of them."""
    functions: dict[str, Any] = {"the judge's rule": decide}
    for prediction in claim.predictions:
        functions[type(prediction.criterion).__name__] = type(prediction.criterion)
        if isinstance(prediction, Measured):
            functions[prediction.measure.__name__] = prediction.measure
        if isinstance(prediction, Trained):
            functions[prediction.contrast.__name__] = prediction.contrast
            if isinstance(prediction.metric, RunMetric):
                functions[prediction.metric.read.__name__] = prediction.metric.read
    return {name: source_digest(function) for name, function in sorted(functions.items())}


def _differences(
    then: dict[str, Any], today: dict[str, Any], defaults: Mapping[str, Any]
) -> list[str]:
    changed = []
    for arm in {**then["arms"], **today["arms"]}:
        changed += _arm_differences(arm, then, today, defaults)
    was, now_is = (
        flat({key: x for key, x in content.items() if key not in ("arms", "settings")})
        for content in (then, today)
    )
    for key in was | now_is:
        if was.get(key) != now_is.get(key):
            changed.append(f"{key}: {was.get(key)} -> {now_is.get(key)}")
    return changed


def _arm_differences(
    arm: str, then: dict[str, Any], today: dict[str, Any], defaults: Mapping[str, Any]
) -> list[str]:
    if arm not in then["arms"] or arm not in today["arms"]:
        return [f"arm {arm} {'added' if arm in today['arms'] else 'removed'}"]
    was, now_is = (
        content["settings"]
        | content["arms"][arm]["settings"]
        | {"corpus": content["arms"][arm]["corpus"]}
        for content in (then, today)
    )
    # A setting that is newer than the declaration counts as unchanged at its default.
    was = {key: defaults[key] for key in now_is if key in defaults} | was
    return [
        f"arm {arm}: {key}: {was.get(key, 'absent')} -> {now_is.get(key, 'absent')}"
        for key in was | now_is
        if was.get(key, MISSING) != now_is.get(key, MISSING)
    ]
