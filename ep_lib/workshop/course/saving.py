"""The hook with which the server of ``ep-lib lab`` saves notebooks: predictions stay readable without a kernel."""

from __future__ import annotations

from typing import Any

from ep_lib.errors import ArgumentError
from ep_lib.workshop.course.prediction import METADATA, Prediction

_WIDGETS = "application/vnd.jupyter.widget-view+json"


def before_saving(path: str, model: dict[str, Any], **_: Any) -> None:
    """Jupyter's ``pre_save_hook``: saves an output in another form than a widget, if it has one.

    A widget exists only in the kernel; without it, a notebook would show "model not found". A prediction is written
    again with its answer.
    """
    if model.get("type") != "notebook" or not isinstance(model.get("content"), dict):
        return
    for cell in model["content"].get("cells", ()):
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if not isinstance(data, dict) or "text/html" not in data or data.pop(_WIDGETS, None) is None:
                continue
            if asked := output.get("metadata", {}).get(METADATA):
                try:
                    data["text/html"] = Prediction(asked["key"], asked["question"], asked["choices"]).as_html()
                except (ArgumentError, KeyError, TypeError):  # it was edited: leave it unchanged
                    continue


# ---- Jupyter's server extension; jupyter/jupyter_server_config.d switches it on ----------------------------------
def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(server: Any) -> None:
    server.contents_manager.register_pre_save_hook(before_saving)
