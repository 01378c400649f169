"""Configurations: TOML files with changed values and broken syntax, and overrides."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from fuzz.mutations import any_number, any_value, changed_text
from trellis.config import RunConfig, load_config, run_config
from trellis.options import to_tables, to_toml
from trellis.registry import FAMILIES, find_family


class Target:
    """Load configurations of all families."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "run.toml"
        self.runs = [RunConfig(model=find_family(name).load("config")()) for name in FAMILIES]
        self.tables = [{k: v for k, v in to_tables(run).items() if v is not None} for run in self.runs]
        self.names = sorted({f"{part}.{key}" for table in self.tables for part, section in table.items()
                             if isinstance(section, dict) for key in section} | {"seed", "budget"})  # fmt: skip

    def honest(self) -> None:
        for run in self.runs:
            self.file.write_text(to_toml(run, comments=True))
            assert load_config(self.file) == run

    def case(self, random: Random) -> None:
        random.choice([self.broken_file, self.changed_option, self.override])(random)

    def broken_file(self, random: Random) -> None:
        self.file.write_bytes(changed_text(random, to_toml(random.choice(self.runs), comments=random.random() < 0.2)))
        load_config(self.file)

    def changed_option(self, random: Random) -> None:
        """One option has another value, as from Python."""
        table: dict[str, Any] = json.loads(json.dumps(random.choice(self.tables)))
        name = random.choice(sorted(table))
        section = table[name]
        if isinstance(section, dict) and section:
            section[random.choice(sorted(section))] = any_value(random)
        else:
            table[name] = any_value(random)
        run_config(table)

    def override(self, random: Random) -> None:
        nested = "[" * random.choice([1, 900, 20_000])
        values = [random.choice([any_number(random), str(any_value(random)), nested]) for _ in range(2)]
        overrides = [f"{random.choice(self.names)}={value}" for value in values]
        family = random.choice([*FAMILIES])
        run_config({}, [f"model.family={family}", *overrides])
