// The page of ep_lib.viz.networks_by_seed.
let seed = 0;
$("about").textContent = `${data.seeds} seeds on each network`;
$("slider").max = data.seeds - 1;
function overtook(messages, number) {
  const [, pair, , place] = messages[number];
  return messages.slice(0, number).some(([, other, , there]) => other === pair && there > place);
}
function draw() {
  const runs = data.panels.map((panel) => panel.runs[seed]), most = Math.max(...runs.map((run) => run.messages.length));
  const early = runs.map(({messages}) => messages.map((_, number) => overtook(messages, number)));
  const said = data.panels.map((panel, side) => {
    const {messages, found} = runs[side], count = early[side].filter(Boolean).length;
    return `${panel.label}: ${count} of ${messages.length} messages overtook another; ` +
      (found.length ? `the checker says: ${found.join("; ")}` : "the checker found nothing in this run");
  });
  $("now").innerHTML = said.map(escape).join("<br>");
  $("count").textContent = `seed ${seed}`;
  $("slider").value = seed;
  $("slider").setAttribute("aria-valuetext", `seed ${seed}: ${said.join(". ")}`);
  // As wide as the page, and as high as the rest leaves: letters keep their size.
  const chart = $("chart"), wide = Math.min(1000, $("now").clientWidth), panel = wide / 2;
  const rest = $("page").offsetHeight - chart.getBoundingClientRect().height;
  const row = Math.max(11, Math.min(24, (window.innerHeight - rest - 48) / most)), height = 40 + most * row;
  const out = [];
  data.panels.forEach(({label}, side) => {
    const {messages} = runs[side], left = side * panel + 34, right = left + panel - 120;
    const y = (place) => 40 + (place + 0.5) * row;
    out.push(`<text x="${left - 6}" y="16" font-weight="600">${escape(label)}</text>`,
      `<text x="${left - 6}" y="32">posted</text><text x="${right - 10}" y="32">arrives</text>`);
    messages.forEach(([kind, pair, bytes, place], number) => {
      const bold = early[side][number], signal = !bytes || kind.includes("signal");
      const color = bold ? "var(--bad)" : colorOf(pair);
      out.push(`<line x1="${left}" y1="${y(number)}" x2="${right}" y2="${y(place)}" stroke="${color}" stroke-width="${bold ? 3.2 : 1.4}"/>`);
      for (const [x, at] of [[left, number], [right, place]]) {
        out.push(signal ? `<path d="M${x} ${y(at) - 6}l6 6l-6 6l-6 -6z" fill="${color}"/>` : `<rect x="${x - 4.5}" y="${y(at) - 4.5}" width="9" height="9" fill="${color}"/>`);
      }
      out.push(`<text x="${left - 12}" y="${y(number) + 4}" text-anchor="end">${number + 1}</text><text x="${right + 12}" y="${y(place) + 4}">${number + 1} ${escape(kind)}</text>`);
    });
  });
  for (const [name, value] of [["viewBox", `0 0 ${wide} ${height}`], ["width", wide], ["height", height]]) chart.setAttribute(name, value);
  chart.innerHTML = out.join("");
}
function go(next) {
  seed = Math.max(0, Math.min(data.seeds - 1, next));
  draw();
}
$("slider").oninput = () => go(Number($("slider").value));
onKeys({ArrowRight: () => go(seed + 1), ArrowLeft: () => go(seed - 1), Home: () => go(0), End: () => go(data.seeds - 1)});
let width = 0;
new ResizeObserver(() => {
  if (width !== $("now").clientWidth) draw();
  width = $("now").clientWidth;
}).observe($("page"));
