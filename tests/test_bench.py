"""``ep-lib bench``: the benchmarks run on any machine, and say what their numbers are."""

from __future__ import annotations

import json

import pytest

from ep_lib import cli


@pytest.mark.parametrize("fabric", ["p2p", "rc", "srd"])
def test_put_prints_one_json_object(fabric: str, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "put", "--fabric", fabric, "--bytes", "8,1K", "--puts", "50", "--ranks", "3", "--json", "--state"]
    assert cli.main(words) == 0
    said = capfd.readouterr()
    report = json.loads(said.out)
    assert (report["backend"], report["clock"], report["fabric"], report["puts"]) == ("emulator", "virtual", fabric, 50)
    rows = report["results"]
    assert [(row["rank"], row["peer"], row["bytes"]) for row in rows] == [
        (rank, (rank + 1) % 3, size) for rank in range(3) for size in (8, 1024)
    ]
    assert all(row[way]["cycles_a_put"] > 0 for row in rows for way in ("one_quiet", "quiet_each"))
    direct = "P2P" if fabric == "p2p" else "RDMA"
    assert "rank 0: num_rc_per_pe=16" in said.err and f"rank 0 -> rank 1: {direct}" in said.err


def test_put_says_that_virtual_cycles_are_not_time(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "put", "--puts", "20"]) == 0
    said = capfd.readouterr().out
    assert "20 puts of one warp on the emulator, fabric p2p" in said and "Virtual cycles" in said


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--puts", "0"], "--puts is 0"),
        (["--transport", "nvshmem"], "--transport nvshmem is for GPUs"),
        (["--backend", "cuda", "--fabric", "srd"], "--fabric srd is the emulator's"),
        (["--ranks", "3", "--fabric", "rc", "--ranks-per-node", "2"], "3 ranks do not fill nodes of 2"),
        (["--bytes", "8,much"], "'much' is not a size"),
        (["--bytes", "0"], "below one byte"),
    ],
)
def test_put_refuses_what_cannot_work(words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = cli.main(["bench", "put", *words])
    except SystemExit as end:
        code = int(str(end.code))
    assert code in (1, 2)
    assert complaint in capsys.readouterr().err.replace("\n  ", " ")
