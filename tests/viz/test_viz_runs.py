"""Pictures of runs on the virtual clock: lanes, labels that do not overlap, and numbers that are those of the run."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from ep_lib import Fabric, viz
from ep_lib.emulator.hardware import HARDWARE
from ep_lib.emulator.timeline import Message, Sample, Span, Timeline
from ep_lib.errors import ArgumentError
from ep_lib.viz.fabrics import overtakers
from ep_lib.viz.run import _shares, covered, pack, under_way, union


def make_run(ranks: int = 2, blocks: int = 2, rounds: int = 3, late: int = 0) -> Timeline:
    """Every block copies and posts a few puts, each later put ``late`` ns less under way, and waits for the others."""
    spans, messages, samples = [], [], []
    for rank in range(ranks):
        for block in range(blocks):
            at = 2000 + 150 * block
            begin = at
            for i in range(rounds):
                spans.append(Span(rank, block, 0, "copy", "copy", at, at + 900, "a.cu:2"))
                spans.append(Span(rank, block, 0, "post", "put", at + 900, at + 1100, "a.cu:3"))
                at += 1100
                way = 2000 + late * (rounds - i)
                number = len(messages)
                target = (rank + 1) % ranks
                messages.append(
                    Message(
                        number, rank, target, 0, "put", 4096, 4200, at, at + 300, at + way, at + way + 900, "a.cu:3"
                    )
                )
                samples.append(Sample(rank, block, "slots in use", at, i + 1))
            spans.append(Span(rank, block, 0, "wait", "wait for a credit", at, at + 9000, "a.cu:5"))
            spans.append(Span(rank, block, None, "kernel", "send", begin, at + 9500, "a.cu:1"))
    end = max(span.end_ns for span in spans)
    return Timeline(
        results=[None] * ranks,
        hardware=HARDWARE["h20-cx7"],
        fabric=Fabric("rc"),
        ranks=ranks,
        spans=tuple(spans),
        messages=tuple(messages),
        samples=tuple(samples),
        end_ns=end,
    )


def row(ranks: int = 8, what: str = "FP8 dispatch", published: float | None = 53.01, **changed: Any) -> dict[str, Any]:
    numbers = {"published_gbps": published, "logical_gbps": 51.5, "wire_gbps": 48.0, "line_gbps": 50.0, "us": 4321.0}
    return {"ranks": ranks, "what": what, **numbers, **changed}


TABLE = [row(r, w, None if r == 32 else 50.0) for w in ("FP8 dispatch", "BF16 combine") for r in (8, 16, 32)]


SIDES = ("left", "center", "right")


def lanes(figure: Figure) -> list[str]:
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


def all_texts(figure: Figure) -> list[Any]:
    """Every piece of text that is seen: titles, labels, ticks within the axes, numbers, legends."""
    found = list(figure.texts)
    legends = list(figure.legends)
    for axes in figure.axes:
        found += [*axes.texts, axes.xaxis.label, axes.yaxis.label]
        found += [title for title in axes.findobj(Text) if title.get_text() in {axes.get_title(loc=x) for x in SIDES}]
        for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, sorted(axes.get_ylim()))):
            found += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
        legends += [axes.get_legend()] if axes.get_legend() else []
    found += [text for legend in legends for text in legend.get_texts()]
    return list({id(text): text for text in found if text.get_visible() and text.get_text().strip()}.values())


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    figure.draw_without_rendering()
    boxes = []
    for text in all_texts(figure):
        box = text.get_window_extent()
        if box.width > 1 and box.height > 1:
            boxes.append((text.get_text(), box))
    # A box is some points larger than what is seen in it.
    return [
        (a, b)
        for (a, one), (b, other) in combinations(boxes, 2)
        if min(one.x1, other.x1) - max(one.x0, other.x0) > 2 and min(one.y1, other.y1) - max(one.y0, other.y0) > 3
    ]


# ---- every picture ---------------------------------------------------------------------------------------------------
@pytest.mark.extended(after=10)
@pytest.mark.slow
@pytest.mark.parametrize(
    "draw",
    [
        lambda: viz.run_timeline(make_run(), title="A run"),
        lambda: viz.run_timeline(make_run(), lanes="rank"),
        lambda: viz.run_timeline(make_run(8, 24)),
        lambda: viz.run_timeline(make_run(8, 24), lanes="rank", begin_us=3, end_us=5),
        lambda: viz.run_timeline(make_run(1, 1, 40)),
        lambda: viz.fabrics_side_by_side(make_run(), make_run(late=1500), title="Two networks"),
        lambda: viz.fabrics_side_by_side(make_run(rounds=12), make_run(rounds=12, late=90)),
        lambda: viz.fabrics_side_by_side(make_run(rounds=40), make_run(rounds=40, late=90)),
        lambda: viz.samples_over_time(make_run(), limits={"slots in use": 3}, title="A ring"),
        lambda: viz.samples_over_time(make_run(8, 24), ["slots in use", viz.BYTES_ON_THEIR_WAY]),
        lambda: viz.published_and_model(TABLE, title="DeepEP on H20"),
        lambda: viz.published_and_model(TABLE[:1]),
    ],
)
def test_it_can_be_saved_and_no_text_lies_on_other_text(draw: Callable[[], Figure]) -> None:
    figure = draw()
    assert isinstance(figure, viz.Picture)
    assert figure.png().startswith(b"\x89PNG")
    assert overlapping(figure) == []


def bars_of(axes: Axes) -> list[Bbox]:
    """The bars of a picture, in the units of its axes."""
    bars = [each for each in axes.collections if isinstance(each, PolyCollection)]
    return [path.get_extents() for each in bars for path in each.get_paths()]


# ---- the run ---------------------------------------------------------------------------------------------------------
def test_a_lane_a_block_and_one_for_the_network() -> None:
    figure = viz.run_timeline(make_run())
    expected = [f"rank {rank}  {what}" for rank in range(2) for what in ("block 0", "block 1", "network")]
    assert lanes(figure) == expected
    axes = figure.axes[0]
    assert axes.get_xlabel() == "virtual time (µs)"
    assert axes.get_xlim() == (0, make_run().end_ns / 1000)
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[:5] == ["waits", "copies", "posts to the NIC", "anything else in a kernel", "on its way: put"]
    assert [t.get_text() for t in axes.texts].count("wait for a credit") == 4, "a bar that has room says what it is"
    run = make_run()
    spans = (dataclasses.replace(s, end_ns=s.begin_ns + 4) if s.kind == "copy" else s for s in run.spans)
    short = dataclasses.replace(run, spans=tuple(spans))
    assert "copies" not in [text.get_text() for text in viz.run_timeline(short).legends[0].get_texts()]


def test_messages_are_bars_at_their_own_times_with_arrows_to_their_target() -> None:
    run = make_run(rounds=1)
    axes = viz.run_timeline(run).axes[0]
    bars = {(round(bar.x0, 3), round(bar.width, 3)) for bar in bars_of(axes)}
    for message in run.messages:
        assert (message.departed_ns / 1000, (message.delivered_ns - message.departed_ns) / 1000) in bars
    arrows = [t for t in axes.texts if getattr(t, "arrow_patch", None) is not None]
    assert sorted(round(arrow.xy[0], 3) for arrow in arrows) == sorted(m.delivered_ns / 1000 for m in run.messages)


def test_many_blocks_become_a_lane_a_rank() -> None:
    figure = viz.run_timeline(make_run(8, 24))
    assert lanes(figure) == [
        f"rank {rank}  {what}" for rank in range(8) for what in ("24 blocks\n(height: how many)", "network")
    ]
    words = [text.get_text() for text in figure.axes[0].texts]
    assert sum(bool(re.fullmatch(r"at most \d+ messages at once", word)) for word in words) == 8
    assert len(lanes(viz.run_timeline(make_run(2, 24), lanes="block"))) == 2 * 25


def test_warps_of_a_block_get_rows_of_their_own() -> None:
    run = make_run(1, 1, 1)
    second = dataclasses.replace(run.spans[0], warp=1)
    axes = viz.run_timeline(dataclasses.replace(run, spans=(*run.spans, second))).axes[0]
    copies = [bar for bar in bars_of(axes) if bar.width == pytest.approx(0.9)]
    assert len({round(bar.y0, 3) for bar in copies}) == 2


def test_two_runs_can_have_one_axis() -> None:
    picture = viz.new_picture(11, 6)
    above, below = picture.subplots(2, 1)
    for axes, rounds in ((above, 1), (below, 3)):
        assert viz.run_timeline(make_run(rounds=rounds), end_us=20, axes=axes) is picture
    assert above.get_xlim() == below.get_xlim() == (0, 20)
    assert overlapping(picture) == []


def test_runs_are_compared_by_one_rank_and_its_named_blocks() -> None:
    runs = {"slow": make_run(rounds=3), "quick": make_run(rounds=2)}
    picture = viz.timelines_compared(runs, rank=1, blocks={0: "copier"}, messages=2)
    above, below = picture.axes
    for axes in (above, below):
        assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 1  copier", "rank 1  network"]
    assert above.get_xlim() == below.get_xlim()
    assert overlapping(picture) == []
    for rank, messages in ((7, 2), (1, 0)):
        with pytest.raises(ArgumentError, match="needs runs with messages, and shows at least one"):
            viz.timelines_compared(runs, rank=rank, messages=messages)


def test_runs_without_messages_are_compared_from_their_first_kernel_on() -> None:
    runs = {str(rounds): dataclasses.replace(make_run(rounds=rounds), messages=()) for rounds in (2, 3)}
    picture = viz.timelines_compared(runs, rank=1, lanes="rank", rest="adds up")
    begin = min(span.begin_ns for run in runs.values() for span in run.spans if span.rank == 1) / 1000
    for axes in picture.axes:
        assert len(axes.get_yticklabels()) == 1
        assert axes.get_xlim() == (max(0.0, begin - 1), pytest.approx(1.02 * axes.get_xlim()[1], rel=0.02))
    assert "adds up" in [text.get_text() for text in picture.legends[0].get_texts()]
    with pytest.raises(ArgumentError, match="or kernels only"):
        viz.timelines_compared({**runs, "other": make_run()})


def test_a_rank_that_did_nothing_has_no_lane_and_hurts_nothing() -> None:
    run = dataclasses.replace(make_run(2, 1), ranks=3)
    assert lanes(viz.run_timeline(run))[-1] == "rank 1  network"


def test_messages_that_never_leave_or_arrive_last_until_the_end() -> None:
    run = make_run(rounds=1)
    never = float("inf")
    lost = dataclasses.replace(run.messages[0], departed_ns=never, delivered_ns=never, completed_ns=never)
    late = dataclasses.replace(run.messages[1], delivered_ns=never, completed_ns=never)
    run = dataclasses.replace(run, messages=(lost, late))
    axes = viz.run_timeline(run).axes[0]
    assert max(bar.x1 for bar in bars_of(axes)) == run.end_ns / 1000
    assert not [t for t in axes.texts if getattr(t, "arrow_patch", None) is not None]
    counted = viz.samples_over_time(run, viz.MESSAGES_ON_THEIR_WAY).axes[0].lines[0].get_ydata()
    assert counted.tolist()[-3:] == [2, 0, 0], "until the end"


# ---- two networks ----------------------------------------------------------------------------------------------------
def test_overtaking_is_counted() -> None:
    rc, srd = make_run(), make_run(late=1500)
    left, right = viz.fabrics_side_by_side(rc, srd).axes
    assert left.get_xlim() == right.get_xlim()
    assert left.get_title(loc="left") == "RC (InfiniBand): in the order of posting"
    sent = sorted((m for m in srd.messages if m.source == 0), key=lambda m: m.posted_ns)
    number = sum(overtakers(sent))
    assert number > 0
    assert right.get_title(loc="left") == f"SRD (EFA): {number} of 6 overtook an earlier one"
    assert [label.get_text() for label in right.get_yticklabels()] == [f"{i}: put 4 KiB" for i in range(6)]
    assert right.lines[-1].get_xdata().tolist() == [m.delivered_ns / 1000 for m in sent]
    places = [text.get_text() for text in right.texts]
    arrived = sorted(range(6), key=lambda i: sent[i].delivered_ns)
    assert [places[i] for i in arrived] == ["1st", "2nd", "3rd", "4th", "5th", "6th"]
    assert [text.get_fontweight() == "bold" for text in right.texts] == overtakers(sent)


def test_overtakers() -> None:
    message = make_run().messages[0]
    times = [5, 3, 6, 6, 4, 9]
    messages = [dataclasses.replace(message, delivered_ns=t) for t in times]
    assert overtakers(messages) == [False, True, False, False, True, False]
    of_two = [dataclasses.replace(m, queue_pair=i % 2) for i, m in enumerate(messages)]
    assert overtakers(of_two) == [False, False, False, False, True, False]


def test_a_queue_pair_is_named_where_there_are_several_and_has_a_line() -> None:
    run = make_run()
    run = dataclasses.replace(
        run, messages=tuple(dataclasses.replace(m, queue_pair=m.number % 2) for m in run.messages)
    )
    axes = viz.fabrics_side_by_side(run, run).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        f"{row}: put 4 KiB, pair {pair}" for row, pair in enumerate((0, 0, 0, 1, 1, 1))
    ]
    assert len([line for line in axes.lines if line.get_marker() == "o"]) == 2


# ---- samples ---------------------------------------------------------------------------------------------------------
def test_a_panel_a_name_and_a_line_a_block() -> None:
    run = make_run()
    figure = viz.samples_over_time(run, ["slots in use", viz.MESSAGES_ON_THEIR_WAY], limits={"slots in use": 3})
    slots, messages = figure.axes
    assert [slots.get_title(loc="left"), messages.get_title(loc="left")] == ["slots in use", "messages on their way"]
    labels = [text.get_text() for text in slots.get_legend().get_texts()]
    assert labels == [f"rank {rank}, block {block}" for rank in range(2) for block in range(2)]
    assert slots.lines[0].get_ydata().tolist() == [1, 2, 3, 3]
    assert "limit 3 " in [text.get_text() for text in slots.texts]
    assert [text.get_text() for text in messages.get_legend().get_texts()] == ["rank 0", "rank 1"]
    assert float(np.max(messages.lines[0].get_ydata())) == 4


def test_bytes_are_shown_in_a_unit() -> None:
    axes = viz.samples_over_time(make_run(), viz.BYTES_ON_THEIR_WAY).axes[0]
    assert axes.get_title(loc="left") == "bytes on their way (KiB)"
    assert float(np.max(axes.lines[0].get_ydata())) == 4 * 4


# ---- the table -------------------------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True)
class Row:
    ranks: int
    what: str
    published_gbps: float | None
    logical_gbps: float
    wire_gbps: float
    line_gbps: float
    us: float


def test_a_panel_a_kind_and_three_bars_a_row() -> None:
    figure = viz.published_and_model([Row(**r) for r in TABLE])
    fp8, bf16 = figure.axes
    assert [fp8.get_title(loc="left"), bf16.get_title(loc="left")] == ["FP8 dispatch", "BF16 combine"]
    assert len(fp8.patches) == 3 + 3 + 2, "nobody published EP32"
    labels = [label.get_text() for label in fp8.get_xticklabels()]
    assert labels == ["EP8\n4,321 µs\n+3.0%", "EP16\n4,321 µs\n+3.0%", "EP32\n4,321 µs"]
    assert "not published" in [text.get_text() for text in fp8.texts]
    band = fp8.collections[0].get_paths()[0].get_extents()
    assert (band.y0, band.y1) == (pytest.approx(42.5), pytest.approx(57.5))


# ---- bad input -------------------------------------------------------------------------------------------------------
EMPTY_RUN = dataclasses.replace(make_run(), spans=(), messages=(), samples=())


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda: viz.run_timeline(EMPTY_RUN), "nothing happened"),
        (lambda: viz.run_timeline(make_run(), lanes="warp"), "lanes is 'warp'"),
        (lambda: viz.run_timeline(make_run(), begin_us=5, end_us=4), "from 5 to 4 us is not in this run"),
        (lambda: viz.run_timeline(make_run(), begin_us=1e6), "which takes"),
        (lambda: viz.run_timeline(make_run(), begin_us=-1), "from -1 to"),
        (lambda: viz.fabrics_side_by_side(make_run(), EMPTY_RUN), r"no message from rank 0 to rank 1 .*SRD \(EFA\)"),
        (lambda: viz.fabrics_side_by_side(make_run(), make_run(), target=7), "rank 0 to rank 7"),
        (lambda: viz.fabrics_side_by_side(make_run(), make_run(), labels=["one"]), "two labels"),
        (lambda: viz.samples_over_time(EMPTY_RUN), "ep::trace_value"),
        (
            lambda: viz.samples_over_time(make_run(), ["slots"]),
            "recorded 'slots'; there are: 'slots in use', 'messages",
        ),
        (lambda: viz.samples_over_time(make_run(), limits={"credits": 3}), "recorded 'credits'"),
        (lambda: viz.samples_over_time(EMPTY_RUN, viz.BYTES_ON_THEIR_WAY), "no message was sent"),
        (lambda: viz.published_and_model([]), "at least one row"),
        (lambda: viz.published_and_model([{"ranks": 8}]), r"needs ranks, what, .* got \['ranks'\]"),
        (lambda: viz.published_and_model([7]), "got int"),
        (lambda: viz.published_and_model([row(us=float("nan"))]), "us is nan"),
        (lambda: viz.published_and_model([row(published=-1.0)]), "published_gbps is -1.0"),
        (lambda: viz.published_and_model([row(), row()]), "two rows for FP8 dispatch on 8 ranks"),
    ],
)
def test_bad_input_is_refused_with_its_value(draw: Callable[[], object], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        draw()


# ---- the numbers behind ----------------------------------------------------------------------------------------------
def test_packing_never_overlaps_and_needs_no_more_rows_than_are_under_way() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        begins = rng.integers(0, 50, 30)
        pairs = [(int(b), int(b + d)) for b, d in zip(begins, rng.integers(1, 20, 30), strict=True)]
        rows = pack(pairs)
        for (one, a), (other, b) in combinations(list(zip(pairs, rows, strict=True)), 2):
            assert a != b or one[1] <= other[0] or other[1] <= one[0]
        assert max(rows) + 1 == under_way(pairs)[1].max()


def test_a_block_is_never_busier_than_one_block() -> None:
    spans = [Span(0, 0, None, "kernel", "k", 0, 10_000)]
    spans += [Span(0, 0, 0, "wait", "one lane", 0, 6_000), Span(0, 0, 0, "wait", "another lane", 2_000, 9_000)]
    spans += [Span(0, 0, 1, "copy", "copy", 0, 4_000), Span(0, 0, 0, "post", "put", 0, 2_000)]
    shares = _shares(spans, np.linspace(0, 10, 6))
    assert shares["kernel"].tolist() == [2] * 5
    assert shares["wait"].tolist() == pytest.approx([2 / 3, 1, 1, 1, 0.5]), "two lanes of a warp wait once"
    assert shares["copy"].tolist() == pytest.approx([2 / 3, 1, 0, 0, 0])
    assert shares["post"].tolist() == pytest.approx([2 / 3, 0, 0, 0, 0]), "all together no more than the block"


def test_the_union_of_intervals() -> None:
    assert union([(5, 6), (0, 2), (1, 3), (3, 4)]) == [(0, 4), (5, 6)]


def test_covered_time_is_that_of_the_intervals() -> None:
    edges = np.linspace(0, 10, 6)
    assert covered([(1, 3), (2, 9)], edges).tolist() == [1, 3, 2, 2, 1]
    assert covered([], edges).tolist() == [0] * 5
