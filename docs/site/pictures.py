"""`make pictures`: README's picture and its animation, screenshots of a page of ep_lib.viz.time_travel by Chromium.

python docs/site/pictures.py        # docs/pictures/time_travel.png and time_travel.gif
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from tours import ROOT, no_syncwarp

PICTURES = ROOT / "docs" / "pictures"
WIDTH, HEIGHT = 960, 500
SECONDS, FRAMES = 20, 18
COLORS = 24
LAST_FRAMES = 4  # the finding stays as long as so many others
# A film needs neither buttons nor legends, and one place for each part.
FILM = """
#controls, #legend, header, #messages, .local, #overview { display: none !important; }
main { max-width: none !important; padding: 8px 12px !important; height: auto !important; }
#findings summary { list-style: none; } #now { min-height: 3.2em; font-size: 16px; }
.grid { grid-template-columns: repeat(32, 1fr) !important; }
"""


def screenshot(page: Path, step: int, to: Path) -> Image.Image:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("pictures are made by Chromium, which is not here: install it (Debian: apt install chromium)")
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={to}", f"{page.as_uri()}#{step}"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return Image.open(to).convert("RGB")


def main() -> int:
    os.chdir(ROOT)  # sources are named from here
    PICTURES.mkdir(exist_ok=True)
    html = no_syncwarp().html
    match = re.search(r'id="data">(.*?)</script>', html, re.S)
    assert match is not None
    mark = json.loads(match[1])["marks"][0]
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(html.replace("</style>", f"{FILM}</style>"), encoding="utf-8")
        begin, end = max(0, mark["first"] - 8), mark["step"]
        steps = sorted({round(begin + (end - begin) * i / (FRAMES - 1)) for i in range(FRAMES)})
        frames = [screenshot(page, step + 1, Path(folder) / f"{step}.png") for step in steps]
    frames[-1].quantize(64, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        PICTURES / "time_travel.png", optimize=True
    )
    # By coverage: the ranks' colours are few pixels, and the median of all colours would leave them out.
    palette = frames[-1].quantize(COLORS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    small = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    each = SECONDS * 1000 // (len(small) - 1 + LAST_FRAMES)
    times = [each] * (len(small) - 1) + [each * LAST_FRAMES]
    small[0].save(
        PICTURES / "time_travel.gif", save_all=True, append_images=small[1:], duration=times, loop=0, optimize=True
    )
    for file in sorted(PICTURES.iterdir()):
        print(f"{file.name}: {file.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
