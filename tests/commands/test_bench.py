"""``ep-lib bench``: the benchmarks run on any machine, and say what their numbers are."""

from __future__ import annotations

import json

import pytest

from ep_lib import cli


@pytest.mark.parametrize("fabric", ["p2p", "rc", "srd"])
def test_put_prints_one_json_object(fabric: str, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "put", "--fabric", fabric, "--bytes", "8,1K", "--puts", "50", "--ranks", "3", "--json", "--state"]
    words += ["--hardware", "none"]
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
    assert cli.main(["bench", "put", "--puts", "20", "--hardware", "none"]) == 0
    said = capfd.readouterr().out
    assert "20 puts of one warp on the emulator, fabric p2p" in said and "Virtual cycles" in said


def test_put_in_modelled_time_shows_what_a_quiet_costs(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "put", "--fabric", "rc", "--puts", "50", "--json"]
    assert cli.main(words) == 0
    first = capfd.readouterr().out
    report = json.loads(first)
    assert (report["clock"], report["hardware"]) == ("modelled", "h100-cx7")
    for row in report["results"]:  # a quiet waits for a round trip, of microseconds
        assert row["quiet_each"]["ns_a_put"] > max(1000, 4 * row["one_quiet"]["ns_a_put"])
    assert cli.main(words) == 0
    assert capfd.readouterr().out == first, "modelled time is the same every time"
    assert cli.main(["bench", "put", "--fabric", "srd", "--puts", "20"]) == 0
    assert "fabric srd, modelled p5-efa" in (said := capfd.readouterr().out) and "Modelled, not measured" in said


def test_p2p_goes_there_and_back_on_every_fabric(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "p2p", "--rounds", "10", "--bytes", "0,64,4K", "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)["results"]
    assert [(row["fabric"], row["bytes"]) for row in rows] == [
        (f, n) for f in ("p2p", "rc", "srd") for n in (0, 64, 4096)
    ]
    assert all(row["us"] > 0 and row["clock"] == "modelled" for row in rows)
    assert cli.main(["bench", "p2p", "--rounds", "5", "--fabrics", "p2p", "--hardware", "none"]) == 0
    assert "Virtual cycles" in capfd.readouterr().out
    assert cli.main(["bench", "p2p", "--fabrics", "p2p,ether"]) == 1
    assert "'ether' is not one of p2p, rc, srd" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--puts", "0"], "--puts is 0"),
        (["--transport", "nvshmem"], "--transport nvshmem is for GPUs"),
        (["--backend", "cuda", "--hardware", "p5-efa"], "--hardware p5-efa is what the emulator models"),
        (["--backend", "cuda", "--fabric", "srd"], "--fabric srd is for the emulator"),
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
