"""The messages of a notebook's kernel before its first cell has run, for example after "Restart kernel".

``ep-lib lab`` makes this file the PYTHONSTARTUP of its kernels, which run it in the notebook's own namespace: it does
not import ep_lib, which is slow, and leaves no name there. The first cell's import of ep_lib.workshop replaces these
magics by the real ones.
"""


def _begin() -> None:
    import sys

    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    if shell is None:  # a Python in a terminal of the lab
        return
    said = "This kernel has just started and knows nothing: run the notebook's first cell, and then this one again."

    def not_yet(line: str, cell: str) -> None:
        print(said)

    def explain(shell, kind, error, trace, tb_offset=None):  # type: ignore[no-untyped-def]
        if "ep_lib.workshop" not in sys.modules:
            error._render_traceback_ = lambda: [f"NameError: {error}", said]
        shell.showtraceback((kind, error, trace), tb_offset=tb_offset)

    for name in ("puzzle", "kernel", "with_nixl"):
        shell.register_magic_function(not_yet, magic_kind="cell", magic_name=name)
    shell.set_custom_exc((NameError,), explain)


_begin()
del _begin
