"""Declarations: what was fixed about a claim before its first run, in a committed file."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from attnlab.claims.claim import Claim, Measured, Prediction, RunMetric, Trained
from attnlab.claims.code_digest import claim_code
from attnlab.claims.configs import ConfigResolver, ResolvedConfig
from attnlab.claims.provenance import text_at
from attnlab.claims.rows import Row, plain, read_published, read_rows
from attnlab.errors import BadInput
from attnlab.files import read_json, write_json
from attnlab.runs.run_directory import now
from attnlab.runs.seed_statistics import declared_looks
from attnlab.runs.settings import flat, settings_with

FILE = "declared.json"
# What load_claim or this file sets, and what no verdict depends on.
APART = ("name", "pilot", "timed", "seconds", "chosen", "rates", "lengths", "part_of", "steps")
MISSING = object()


@dataclass
class Declared:
    """A claim's declaration, compared with the current claim."""

    version: int = 0  # 0 if nothing was declared
    changed: list[str] = field(default_factory=list)  # if not empty, runs are exploratory
    content: dict[str, Any] = field(default_factory=dict)  # of declared.json
    # Arm -> the digest that identifies its runs, for arms that did not change.
    arm_digests: dict[str, str] = field(default_factory=dict)

    @property
    def exploratory(self) -> str:
        """Why runs are not part of a declared test; empty if they are."""
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
    settings = {name: _settings(config) for name, config in arms.items()}
    common = dict(next(iter(settings.values()), {}))
    for own in settings.values():
        common = {k: v for k, v in common.items() if own.get(k, MISSING) == v}
    content = {
        "says": claim.says,
        "looks": declared_looks(claim.last_look),
        "first_seed": claim.first_seed,
        "predictions": {each.name: _prediction(each) for each in claim.predictions},
        "code": claim_code(resolve.paths.experiments / claim.name),
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
    """Read a claim's declaration and compare it with the current claim; BadInput if the file is
    damaged."""
    file = resolve.paths.experiments / claim.name / FILE
    if not file.exists():
        return Declared()
    today, defaults = declaration(claim, resolve), _settings(resolve(()))
    try:
        content = read_json(file)
        then, version = content["declaration"], int(content["version"])
        changed = _changes(then, today, defaults)
        same = [name for name in then["arms"] if not changed.get(f"arm {name}")]
        digests = {name: then["arms"][name]["digest"] for name in same}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{file} is damaged ({error}); restore it from git") from error
    return Declared(version, list(chain(*changed.values())), content, digests)


def declare(claim: Claim, resolve: ConfigResolver, reference: Mapping[str, Any]) -> Declared:
    """Write a new version of a claim's declaration, unless nothing changed.

    `reference` holds the reference values. The rows of the old version move to rows-v<n>.jsonl.
    Returns the declaration that is now on disk. Raises BadInput if an earlier version used a seed.
    """
    old = read_declared(claim, resolve)
    if old.version and not old.changed:
        return old
    check_seeds(claim, resolve.paths.experiments / claim.name, "rows*.jsonl")
    history = list(old.content.get("history", []))
    directory = resolve.paths.experiments / claim.name
    last = read_published(directory)
    if old.version or last:
        entry = {"version": old.version or last.get("version", 1)}
        entry |= {"time": old.content.get("time"), "changed": old.content.get("changed", [])}
        if (rows := directory / "rows.jsonl").exists():
            entry["seeds"] = sorted({row["seed"] for row in read_rows(rows)})
            rows.rename(directory / f"rows-v{entry['version']}.jsonl")
        same = last.get("version") == entry["version"]
        history.append(entry | {"verdict": last["verdict"] if same else "not published"})
    version = history[-1]["version"] + 1 if history else 1
    content = {
        "version": version,
        "time": now(),
        "changed": old.changed if old.version else ["the first declaration that is kept"],
        "declaration": declaration(claim, resolve),
        "reference": dict(reference),
        "history": history,
    }
    write_json(directory / FILE, content)
    return read_declared(claim, resolve)


def check_seeds(claim: Claim, directory: Path, files: str) -> None:
    """Refuse, by BadInput, a test seed that has a row in one of these files, or that an earlier
    version used."""
    test = {seed for each in claim.predictions for seed in claim.declared_seeds(each)}
    places = {f"has rows in {file}": read_rows(file) for file in sorted(directory.glob(files))}
    seeds = {place: {row["seed"] for row in rows} for place, rows in places.items()}
    if (declared := directory / FILE).exists():
        for entry in read_json(declared).get("history", []):
            seeds[f"version {entry['version']} used"] = set(entry.get("seeds", ()))
    for place, earlier in seeds.items():
        if used := sorted(test & earlier):
            raise BadInput(
                f"{claim.name} would use seed {used[0]} again, which {place}; a new version needs "
                "new seeds, so set another first_seed"
            )


def check_committed(file: Path, rows: Iterable[Row]) -> None:
    """Refuse, by BadInput, rows without a clean commit that contains the declaration."""
    now_declared, checked = read_json(file)["declaration"], set()
    for row in rows:
        commit, dirty = row["git"]["commit"], row["git"]["dirty"]
        if commit is None or dirty:
            why = "with uncommitted changes" if commit else "outside a git repository"
            raise BadInput(
                f"the row of {row['label']} was made {why}; commit everything, move the row out "
                f"of {file.with_name('rows.jsonl')}, and run with new --outputs"
            )
        if commit in checked:
            continue
        shown = text_at(commit, file)
        if shown is None or json.loads(shown).get("declaration") != now_declared:
            raise BadInput(
                f"{file} is not part of commit {commit[:12]}, at which runs were made; commit the "
                "declaration first, then run without the earlier rows and run directories"
            )
        checked.add(commit)


def _settings(config: ResolvedConfig) -> dict[str, Any]:
    apart = settings_with("undeclared")
    return flat({k: v for k, v in config.settings.items() if k not in apart})


def _prediction(prediction: Prediction) -> dict[str, Any]:
    content = {key: x for key, x in vars(prediction).items() if key not in APART}
    if prediction.part_of:
        content["part_of"] = prediction.part_of
    criterion = prediction.criterion
    content["criterion"] = {"kind": type(criterion).__name__, **asdict(criterion)}
    if isinstance(prediction, Measured):
        content["measure"] = [prediction.measure.__name__, content.pop("value")]
    if isinstance(prediction, Trained):
        content["arms"] = [arm.name for arm in prediction.arms]
        content["contrast"] = prediction.contrast.__name__
        content["given"] = dict(prediction.given)
        if isinstance(metric := prediction.metric, RunMetric):
            content["metric"] = [metric.read.__name__, metric.value, metric.diverged]
    return content


def _changes(
    then: dict[str, Any], today: dict[str, Any], defaults: Mapping[str, Any]
) -> dict[str, list[str]]:
    """What changed in each arm and prediction and, under "", in the rest of a declaration."""
    was, now_is = _parts(then), _parts(today)
    changed = {}
    for part in {**was, **now_is}:
        if part not in was or part not in now_is:
            changed[part] = [f"{part} {'added' if part in now_is else 'removed'}"]
            continue
        new, prefix = now_is[part], f"{part}: " if part else ""
        # A setting that is newer than the declaration counts as unchanged at its default.
        old = {key: defaults[key] for key in new if part.startswith("arm ") and key in defaults}
        old |= was[part]
        changed[part] = [
            f"{prefix}{key}: {old.get(key, 'absent')} -> {new.get(key, 'absent')}"
            for key in old | new
            if old.get(key, MISSING) != new.get(key, MISSING)
        ]
    return changed


def _parts(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings of each arm with its corpus, each prediction, and under "" the rest."""
    parts = {
        f"arm {name}": content["settings"] | arm["settings"] | {"corpus": arm["corpus"]}
        for name, arm in content["arms"].items()
    }
    parts |= {f"prediction {name}": flat(x) for name, x in content["predictions"].items()}
    apart = ("arms", "settings", "predictions")
    return parts | {"": flat({key: x for key, x in content.items() if key not in apart})}
