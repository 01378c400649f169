"""Results as JSON files: configuration, corpus, figures. There are no dates, so the same run gives the same file.

A file has only the options that differ from the stored defaults. These are in a file of their own, one for each family
(`results/defaults/hmm.json`), which is written with the first result of the family and never changed."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import trellis
from trellis.cli.console import finite
from trellis.config import EvalConfig, RunConfig, run_config
from trellis.errors import TrellisError
from trellis.options import build, to_tables
from trellis.storage import check_schema, write_text

SCHEMA = 2
DEFAULTS = "defaults"  # the folder of the defaults, next to the results
Figures = dict[str, float | None]


@dataclass(frozen=True)
class Result:
    """The result of a run with one seed."""

    run: str
    seed: int
    corpus: str
    config: dict[str, Any]  # the whole RunConfig, or that of another kind of run
    figures: Figures
    training: dict[str, Any]  # steps, tokens, seconds, outcome; only seconds if the run is not trained in steps
    hardware: dict[str, Any]
    source: str  # a hash of the library
    errors: dict[str, str]  # analyses that failed, and why

    def is_of(self, config: Any) -> bool:
        """Whether the result is of this configuration, with any device and seed."""
        try:
            made = (
                run_config(self.config).ordered() if isinstance(config, RunConfig) else build(type(config), self.config)
            )
            return essence(made) == essence(config)
        except TrellisError:
            return False


def essence(config: Any) -> Any:
    """A configuration without the parts that depend on seed and machine, or concern the evaluation alone."""
    config = replace(config, seed=0, device="auto")
    return replace(config, eval=EvalConfig()) if isinstance(config, RunConfig) else config


def result_path(folder: Path, run: str, seed: int) -> Path:
    return folder / f"{run}.{seed}.json"


def write_result(path: Path, result: Result, config: Any) -> None:
    """Write a result of a run with this configuration."""
    defaults, usual = default_tables(path.parent, config)
    found = asdict(result) | {"config": differences(result.config, usual)}
    write_json(path, {"schema": SCHEMA, "defaults": defaults, **finite(found)})


def default_tables(folder: Path, config: Any) -> tuple[str, dict[str, Any]]:
    """The name of the defaults of a configuration, and the defaults; they are written if there are none."""
    is_run = isinstance(config, RunConfig)
    name = config.model.family if is_run else type(config).__name__
    path = folder / DEFAULTS / f"{name}.json"
    if not path.exists():
        usual = run_config({"model": {"family": name}}).ordered() if is_run else type(config)()
        write_json(path, to_tables(usual))
    return name, json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def differences(tables: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    """The options whose values are not the usual ones; `merged` is its inverse."""
    inner = {
        key: differences(value, usual[key]) if isinstance(value, dict) and isinstance(usual.get(key), dict) else value
        for key, value in tables.items()
    }
    return {key: value for key, value in inner.items() if value != {} and (key not in usual or value != usual[key])}


def merged(usual: dict[str, Any], tables: dict[str, Any]) -> dict[str, Any]:
    """The usual options, with the values of `tables` where there are any."""
    inner = {
        key: merged(usual[key], value) if isinstance(value, dict) and isinstance(usual.get(key), dict) else value
        for key, value in tables.items()
    }
    return {**usual, **inner}


def read_result(path: Path) -> Result:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        check_schema(path, data.pop("schema", 0), SCHEMA, "run it again")
        usual = path.parent / DEFAULTS / f"{Path(data.pop('defaults')).name}.json"
        data["config"] = merged(json.loads(usual.read_text(encoding="utf-8")), data["config"])
        result = Result(**data)
    except OSError as error:
        raise TrellisError(f"Cannot read {error.filename}: {error.strerror or error}.") from error
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise TrellisError(f"{path} is not the result of a run ({error}); remove it, or run it again.") from error
    if result_path(path.parent, result.run, result.seed) != path or not isinstance(result.figures, dict):
        raise TrellisError(f"{path} is the result of another run or seed; remove it, or run it again.")
    return result


def source_hash() -> str:
    """A hash of the library's source, 16 hexadecimal digits."""
    root, digest = Path(trellis.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def hardware(device: str, jobs: int) -> dict[str, Any]:
    """The device of a run, and the maximum number of runs at the same time."""
    cpu = f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else cpu
    return {"device": name, "torch": torch.__version__, "jobs": jobs}
