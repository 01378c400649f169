"""A run as data: frozen dataclasses that read from and write to TOML."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DataConfig:
    """Which text, and how it becomes integers."""

    source: str = "python-docs"  # a named corpus, a file, a folder, or "-" for standard input
    reader: str = "text"  # text | fasta | csv
    column: str = ""  # csv: the column that holds the sequence
    tokenizer: str = "whitespace"  # whitespace | words | characters | bytes | symbols
    documents: str = "auto"  # auto | file | blank | heading
    lower: bool = False
    digits: bool = False  # every digit run becomes N
    unk: bool = True  # rare and unseen words become <unk>
    min_count: int = 1
    max_size: int = 0  # 0: no limit
    valid_fraction: float = 0.05  # used where the source has no splits of its own
    test_fraction: float = 0.05
