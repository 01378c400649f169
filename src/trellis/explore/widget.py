"""The explorer as a notebook widget: the page's questions come as messages and are answered in this process."""

from __future__ import annotations

import logging
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl

from trellis.errors import TrellisError, within_limits
from trellis.explore.bundle import bundle, read_static
from trellis.explore.endpoints import ENDPOINTS, Endpoint
from trellis.explore.explorer import Explorer
from trellis.explore.turns import BusyError, Turns
from trellis.explore.views import Answer, finite, views_of
from trellis.models.base import PersistedModel

logger = logging.getLogger(__name__)
ESM = "{modules}export default {{ render: module_embedded.render }};\n"


def widget(model: PersistedModel, other: PersistedModel | None = None) -> Any:
    """A widget that shows the explorer of one model, or of two side by side."""
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise TrellisError("The notebook widget needs anywidget: pip install 'trellis-hmm[widget]'.") from error
    explorer = Explorer([views_of(one) for one in (model, other) if one is not None])
    turns = Turns(lanes=explorer.lanes)
    Thread(target=explorer.prepare, args=(turns.run,), name="explore-background", daemon=True).start()

    class ExplorerWidget(anywidget.AnyWidget):
        _esm = ESM.format(modules=bundle("embedded"))
        css = traitlets.Unicode(read_static("explorer.css")).tag(sync=True)

    shown = ExplorerWidget()

    def hear(_: Any, message: Any, buffers: Any) -> None:
        """Answer in a thread of its own, so that the notebook stays usable."""
        turns.submit(lambda: shown.send(reply(explorer, message)), turns.seconds)

    shown.on_msg(hear)
    return shown


def reply(explorer: Explorer, message: Any) -> Answer:
    """The answer to a message of the page, or one sentence that says why there is none."""
    asked = message if isinstance(message, dict) else {}
    try:
        with within_limits():
            return {"id": asked.get("id"), "answer": finite(explorer.answer(*request_of(asked)))}
    except (TrellisError, BusyError) as error:
        return {"id": asked.get("id"), "error": str(error)}
    except Exception:  # otherwise the page would wait for ever
        logger.exception("A question of the explorer failed.")
        return {"id": asked.get("id"), "error": "The question failed; the log has the reason."}


def request_of(asked: Answer) -> tuple[Endpoint, Answer]:
    """The endpoint and the fields of a message {"method", "path", "body"}."""
    path, _, query = str(asked.get("path", "")).partition("?")
    body = asked.get("body")
    fields = dict(parse_qsl(query, keep_blank_values=True)) | (body if isinstance(body, dict) else {})
    for endpoint in ENDPOINTS:
        if endpoint.method == asked.get("method") and (found := in_path(endpoint.path, path)) is not None:
            return endpoint, fields | found
    raise TrellisError("There is no such question; the API lists them.")


def in_path(pattern: str, path: str) -> Answer | None:
    """The fields in a path such as /api/states/{id}; None if it is another path."""
    pairs = list(zip(pattern.split("/"), path.split("/"), strict=False))
    if pattern.count("/") != path.count("/") or any(a != b for a, b in pairs if not a.startswith("{")):
        return None
    return {a.strip("{}"): b for a, b in pairs if a.startswith("{")}
