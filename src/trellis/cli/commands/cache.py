"""trellis cache"""

import argparse

from trellis.cli.console import Answer, Table

SUMMARY = "show or clear the cache of encoded corpora"
EXAMPLE = "trellis cache --clear"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clear", action="store_true", help="remove every entry")


def run(args: argparse.Namespace) -> Answer:
    from trellis.corpus import cache_entries, clear_cache

    entries = clear_cache() if args.clear else cache_entries()
    rows = [{"name": e.name, "size": e.size, "date": f"{e.date:%Y-%m-%d}", "path": str(e.path)} for e in entries]
    return Answer(rows, [Table("removed from the cache" if args.clear else "cache", rows)])
