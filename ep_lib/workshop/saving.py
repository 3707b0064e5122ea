"""What the server of ``ep-lib lab`` does to a notebook that it saves: predictions stay readable without a kernel."""

from __future__ import annotations

from typing import Any

from ep_lib.errors import ArgumentError
from ep_lib.workshop.prediction import METADATA, Prediction

_WIDGETS = "application/vnd.jupyter.widget-view+json"


def before_saving(path: str, model: dict[str, Any], **_: Any) -> None:
    """Jupyter's ``pre_save_hook``: an output that has another form than a widget is saved in that form.

    A widget lives in the kernel; opened again without it, a notebook would say "model not found" in its place. A
    prediction is written anew, as it was answered.
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
                except (ArgumentError, KeyError, TypeError):  # somebody has edited it: it stays as it is
                    continue


# ---- what makes this module an extension of Jupyter's server; jupyter/jupyter_server_config.d switches it on -----
def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(server: Any) -> None:
    server.contents_manager.register_pre_save_hook(before_saving)
