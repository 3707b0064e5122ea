// The page of ep_lib.viz.networks_by_seed.
let seed = 0;
const WIDE = 1000, PANEL = 480;
$("about").textContent = `${data.seeds} seeds on each network`;
$("slider").max = data.seeds - 1;
function overtook(messages, number) {
  const [, pair, , place] = messages[number];
  return messages.slice(0, number).some(([, other, , there]) => other === pair && there > place);
}
function draw() {
  const runs = data.panels.map((panel) => panel.runs[seed]), most = Math.max(...runs.map((run) => run.messages.length));
  const row = Math.max(8, Math.min(24, 360 / most)), height = 40 + most * row;
  const out = [], said = [];
  data.panels.forEach((panel, side) => {
    const {messages, found} = runs[side], left = side * (PANEL + 40) + 70, right = left + PANEL - 150;
    const y = (place) => 40 + (place + 0.5) * row;
    let count = 0;
    out.push(`<text x="${left}" y="16" font-weight="600">${escape(panel.label)}</text>`,
      `<text x="${left - 30}" y="32">posted</text><text x="${right - 10}" y="32">arrives</text>`);
    messages.forEach(([kind, pair, bytes, place], number) => {
      const early = overtook(messages, number), signal = !bytes || kind.includes("signal");
      count += early;
      const color = early ? "var(--bad)" : colorOf(pair);
      out.push(`<line x1="${left}" y1="${y(number)}" x2="${right}" y2="${y(place)}" stroke="${color}" stroke-width="${early ? 3.2 : 1.4}"/>`);
      for (const [x, at] of [[left, number], [right, place]]) {
        out.push(signal ? `<path d="M${x} ${y(at) - 6}l6 6l-6 6l-6 -6z" fill="${color}"/>` : `<rect x="${x - 4.5}" y="${y(at) - 4.5}" width="9" height="9" fill="${color}"/>`);
      }
      out.push(`<text x="${left - 12}" y="${y(number) + 4}" text-anchor="end">${number + 1}</text><text x="${right + 12}" y="${y(place) + 4}">${number + 1} ${escape(kind)}</text>`);
    });
    said.push(`${panel.label}: ${count} of ${messages.length} messages overtook another; ` +
      (found.length ? `the checker says: ${found.join("; ")}` : "the checker found nothing in this run"));
  });
  $("chart").setAttribute("viewBox", `0 0 ${WIDE} ${height}`);
  $("chart").innerHTML = out.join("");
  $("now").innerHTML = said.map(escape).join("<br>");
  $("count").textContent = `seed ${seed}`;
  $("slider").value = seed;
  $("slider").setAttribute("aria-valuetext", `seed ${seed}: ${said.join(". ")}`);
}
function go(next) {
  seed = Math.max(0, Math.min(data.seeds - 1, next));
  draw();
}
$("slider").oninput = () => go(Number($("slider").value));
onKeys({ArrowRight: () => go(seed + 1), ArrowLeft: () => go(seed - 1), Home: () => go(0), End: () => go(data.seeds - 1)});
draw();
