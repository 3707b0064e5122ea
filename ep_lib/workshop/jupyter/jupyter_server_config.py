"""Read by the Jupyter server that ``ep-lib lab`` starts (JUPYTER_CONFIG_PATH)."""

from ep_lib.workshop.saving import before_saving

c.FileContentsManager.pre_save_hook = before_saving  # type: ignore[name-defined]  # noqa: F821 - Jupyter gives it
