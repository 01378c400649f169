"""Extensions from other packages, found through entry points; nothing is imported here."""

from importlib.metadata import entry_points

FAMILIES = "trellis.families"  # a `trellis.registry.Family`
PARAMETERS = "trellis.parameters"  # of HMMs: a subclass of `trellis.families.hmm.parameters.WordParams`
READERS = "trellis.readers"  # of files: a `trellis.corpus.read.Reader`
COMMANDS = "trellis.commands"  # of the command line: a module, see `trellis.cli.main`


def entries(group: str) -> dict[str, str]:
    """The import strings of a group's entry points in all installed packages, by name."""
    return {entry.name: entry.value for entry in entry_points(group=group)}
