"""The explorer shows what a trained model has learned: JSON answers, a web server and a page.

`trellis explore RUN` starts the server. `snapshot` gives the answers for a page without a server."""

from trellis.explore.offline import snapshot

__all__ = ["snapshot"]
