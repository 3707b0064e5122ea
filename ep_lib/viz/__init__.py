"""Pictures for the notebooks, the demo and ``ep-lib bench``.

``time_travel`` makes an HTML page that shows a run step by step; ``networks_by_seed``, ``ring_step_by_step``,
``dispatch_flow`` and ``calculator`` are pages with sliders, too (page.py); ``findings`` gives a report buttons.

Other functions take plain data, or the result of ``ep_lib.simulate``, and return a matplotlib Figure, without
displaying it. Three kinds:

- events of a run: ``timeline`` of events that you made up, ``run_timeline``, ``timelines_compared``,
  ``samples_over_time`` and ``fabrics_side_by_side`` of a run on the virtual clock, ``interleavings`` and ``outcomes``
  of many schedules;
- places and paths of data: ``slot_layout``, ``slots_over_time``, ``bytes_between_ranks``, ``load_per_expert``,
  ``routed_text``;
- speed: ``roofline``, ``shares_of_ceiling``, ``bandwidth_by_sms``, ``transports_compared``, ``published_and_model``.

Begin with style.py, the conventions for pictures. Pages (``time_travel``, ``findings``) need no further package;
without matplotlib, any other picture's name raises BackendUnavailable.
"""

import importlib.util
from typing import Any

from ep_lib.viz.findings import findings
from ep_lib.viz.page import NARROW, RANK_COLORS, Page
from ep_lib.viz.time_travel import time_travel

if importlib.util.find_spec("matplotlib") is not None:
    from ep_lib.viz.accesses import NamedArray, access_map, describe_accesses
    from ep_lib.viz.explore import calculator, dispatch_flow, networks_by_seed, ring_step_by_step
    from ep_lib.viz.fabrics import fabrics_side_by_side
    from ep_lib.viz.figures import (
        bandwidth_by_sms,
        ceiling_of,
        published_and_model,
        roofline,
        shares_of_ceiling,
        transports_compared,
    )
    from ep_lib.viz.run import run_timeline, timelines_compared
    from ep_lib.viz.samples import BYTES_ON_THEIR_WAY, MESSAGES_ON_THEIR_WAY, samples_over_time
    from ep_lib.viz.schedules import RIGHT, interleavings, outcomes
    from ep_lib.viz.slots import slot_layout, slots_over_time
    from ep_lib.viz.style import Picture, new_picture, rank_color
    from ep_lib.viz.timeline import WAITING, Event, timeline
    from ep_lib.viz.traffic import bytes_between_ranks, load_per_expert, rank_legend, routed_text
else:

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from ep_lib.errors import BackendUnavailable
        from ep_lib.require import installs

        raise BackendUnavailable(f"pictures need matplotlib: {installs('lab')}")


__all__ = [
    "BYTES_ON_THEIR_WAY",
    "MESSAGES_ON_THEIR_WAY",
    "NARROW",
    "RANK_COLORS",
    "RIGHT",
    "WAITING",
    "Event",
    "NamedArray",
    "Page",
    "Picture",
    "access_map",
    "bandwidth_by_sms",
    "bytes_between_ranks",
    "calculator",
    "ceiling_of",
    "describe_accesses",
    "dispatch_flow",
    "fabrics_side_by_side",
    "findings",
    "interleavings",
    "load_per_expert",
    "networks_by_seed",
    "new_picture",
    "outcomes",
    "published_and_model",
    "rank_color",
    "rank_legend",
    "ring_step_by_step",
    "roofline",
    "routed_text",
    "run_timeline",
    "samples_over_time",
    "shares_of_ceiling",
    "slot_layout",
    "slots_over_time",
    "time_travel",
    "timeline",
    "timelines_compared",
    "transports_compared",
]
