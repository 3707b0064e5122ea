"""Pictures for the notebooks and the demo; every function returns a matplotlib Figure and shows nothing by itself.

Needs matplotlib (``pip install 'ep-lib[lab]'``); importing this package without it raises BackendUnavailable.
"""

from ep_lib.viz.outcomes import RIGHT, outcomes
from ep_lib.viz.pipeline import slots_over_time
from ep_lib.viz.slots import slot_layout
from ep_lib.viz.style import RANK_COLORS, Picture, new_picture, rank_color
from ep_lib.viz.text import routed_text
from ep_lib.viz.timeline import WAITING, Event, timeline
from ep_lib.viz.traffic import bytes_between_ranks, load_per_expert, rank_legend
from ep_lib.viz.turns import interleavings

__all__ = [
    "RANK_COLORS",
    "RIGHT",
    "WAITING",
    "Event",
    "Picture",
    "bytes_between_ranks",
    "interleavings",
    "load_per_expert",
    "new_picture",
    "outcomes",
    "rank_color",
    "rank_legend",
    "routed_text",
    "slot_layout",
    "slots_over_time",
    "timeline",
]
