"""Pictures for the notebooks and the demo; every function returns a matplotlib Figure and shows nothing by itself.

Needs matplotlib (``pip install 'ep-lib[lab]'``); importing this package without it raises BackendUnavailable.
"""

from ep_lib.viz.fabrics import fabrics_side_by_side
from ep_lib.viz.measured import bandwidth_by_sms, ceiling_of, roofline, shares_of_ceiling
from ep_lib.viz.outcomes import RIGHT, outcomes
from ep_lib.viz.pipeline import slots_over_time
from ep_lib.viz.published import published_and_model
from ep_lib.viz.run import run_timeline
from ep_lib.viz.samples import BYTES_ON_THEIR_WAY, MESSAGES_ON_THEIR_WAY, samples_over_time
from ep_lib.viz.slots import slot_layout
from ep_lib.viz.style import RANK_COLORS, Picture, new_picture, rank_color
from ep_lib.viz.text import routed_text
from ep_lib.viz.timeline import WAITING, Event, timeline
from ep_lib.viz.traffic import bytes_between_ranks, load_per_expert, rank_legend
from ep_lib.viz.transports import transports_compared
from ep_lib.viz.turns import interleavings

__all__ = [
    "BYTES_ON_THEIR_WAY",
    "MESSAGES_ON_THEIR_WAY",
    "RANK_COLORS",
    "RIGHT",
    "WAITING",
    "Event",
    "Picture",
    "bandwidth_by_sms",
    "bytes_between_ranks",
    "ceiling_of",
    "fabrics_side_by_side",
    "interleavings",
    "load_per_expert",
    "new_picture",
    "outcomes",
    "published_and_model",
    "rank_color",
    "rank_legend",
    "roofline",
    "routed_text",
    "run_timeline",
    "samples_over_time",
    "shares_of_ceiling",
    "slot_layout",
    "slots_over_time",
    "timeline",
    "transports_compared",
]
