// The page of ep_lib.viz.dispatch_flow. A token is [rank, its number there, experts, [[destination, slot], ...]].
let at = 0;
const tokens = data.tokens, perRank = data.experts / data.ranks;
const received = Array.from({length: data.ranks}, (_, d) => data.sent.reduce((sum, row) => sum + row[d], 0));
const mine = Array.from({length: data.ranks}, (_, r) => tokens.filter(([rank]) => rank === r).length);
const most = Math.max(1, ...received, ...mine), HEIGHT = Math.max(300, data.ranks * 62);
const WIDE = 640, LEFT = 55, RIGHT = 335;  // fits a narrow page: letters stay letters
const CELL = Math.min(14, (WIDE - RIGHT) / most), TOKEN = Math.min(14, 170 / Math.max(1, ...mine));
const rowTop = (rank) => 24 + rank * (HEIGHT - 24) / data.ranks;
$("about").textContent = `${data.ranks} ranks with ${perRank} experts each; a token goes to each rank once, however many of its experts are there`;
$("slider").max = tokens.length - 1;
const from = ([rank, number]) => [LEFT + 170 + (number - mine[rank]) * TOKEN, rowTop(rank) + 24];
const to = ([destination, slot]) => [RIGHT + slot * CELL + CELL / 2, rowTop(destination) + 22];
function way(token, strong) {
  const [x1, y1] = from(token);
  return token[3].map((row) => {
    const [x2, y2] = to(row);
    return `<path d="M${x1 + TOKEN / 2} ${y1}C${x1 + 70} ${y1} ${x2 - 70} ${y2} ${x2} ${y2}" fill="none" stroke="${colorOf(token[0])}" stroke-width="${strong ? 3.5 : 1}" stroke-opacity="${strong ? 1 : 0.45}"/>`;
  }).join("");
}
function draw() {
  const token = tokens[at], out = [];
  if ($("all").checked) for (let i = 0; i < at; i++) out.push(way(tokens[i], false));
  for (let rank = 0; rank < data.ranks; rank++) {
    out.push(`<text x="4" y="${rowTop(rank) + 28}" font-weight="600">rank ${rank}</text>`,
      `<text x="${RIGHT}" y="${rowTop(rank) + 8}">rank ${rank} receives ${received[rank]} rows: experts ${rank * perRank} to ${(rank + 1) * perRank - 1}</text>`);
  }
  const taken = new Map();
  for (let i = 0; i <= at; i++) for (const [d, slot] of tokens[i][3]) taken.set(`${d} ${slot}`, tokens[i][0]);
  for (let d = 0; d < data.ranks; d++) for (let slot = 0; slot < received[d]; slot++) {
    const writer = taken.get(`${d} ${slot}`), here = token[3].some(([a, b]) => a === d && b === slot);
    out.push(`<rect x="${RIGHT + slot * CELL}" y="${rowTop(d) + 14}" width="${CELL - 1}" height="17" fill="${writer === undefined ? "var(--soft)" : colorOf(writer)}" stroke="${here ? "var(--ink)" : "var(--line)"}" stroke-width="${here ? 2.5 : 0.5}"/>`);
  }
  tokens.forEach((other, i) => {
    const [x, y] = from(other);
    out.push(`<rect data-token="${i}" x="${x}" y="${y - 8}" width="${TOKEN - 1}" height="17" fill="${colorOf(other[0])}" fill-opacity="${i <= at ? 1 : 0.3}" stroke="${i === at ? "var(--ink)" : "none"}" stroke-width="2.5"/>`);
  });
  out.push(way(token, true));
  $("chart").setAttribute("viewBox", `0 0 ${WIDE} ${HEIGHT + 10}`);
  $("chart").innerHTML = out.join("");
  const rows = token[3].map(([d, slot]) => `slot ${slot} of rank ${d}`).join(", ");
  const said = token[3].length ? `token ${token[1]} of rank ${token[0]} chose experts ${token[2].join(", ")}: it goes to ${rows}` +
    (token[2].length > token[3].length ? `, ${token[3].length} row${token[3].length > 1 ? "s" : ""} for ${token[2].length} experts` : "") : `token ${token[1]} of rank ${token[0]} chose no expert: it stays`;
  $("now").textContent = said;
  $("now").style.borderColor = colorOf(token[0]);
  $("count").textContent = `${at + 1} of ${tokens.length}`;
  $("slider").value = at;
  $("slider").setAttribute("aria-valuetext", said);
}
$("counts").innerHTML = `<h3>rows, and in parentheses the slot at which they begin: the prefix sums that make slots exact</h3><table><tr><th>from \\ to</th>${data.sent.map((_, d) => `<th>rank ${d}</th>`).join("")}</tr>` +
  data.sent.map((row, s) => `<tr><th>rank ${s}</th>${row.map((n, d) => `<td>${n} <span class="quiet">(${data.begins[s][d]})</span></td>`).join("")}</tr>`).join("") + "</table>";
function go(next) {
  at = Math.max(0, Math.min(tokens.length - 1, next));
  draw();
}
$("slider").oninput = () => go(Number($("slider").value));
$("all").onchange = draw;
$("back").onclick = () => go(at - 1);
$("on").onclick = () => go(at + 1);
$("chart").onclick = (event) => { if (event.target.dataset.token !== undefined) go(Number(event.target.dataset.token)); };
onKeys({ArrowRight: () => go(at + 1), ArrowLeft: () => go(at - 1), Home: () => go(0), End: () => go(tokens.length - 1),
  a: () => { $("all").checked = !$("all").checked; draw(); }});
draw();
