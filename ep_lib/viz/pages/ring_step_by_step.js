// The page of ep_lib.viz.ring_step_by_step. An event is [kind, round]: 0 a write begins, 1 it ends, 2 a read begins, 3
// it ends, which is what the credit says.
let at = 0;
const WORDS = ["the sender begins to write", "the sender has written and signals", "the receiver begins to read", "the receiver has read and gives a credit for"];
$("about").textContent = `${data.rounds} rounds through ${data.slots} slots`;
$("slider").max = data.events.length - 1;
$("legend").innerHTML = ["free", "being written", "full, not read yet", "being read"].map((text, n) =>
  `<svg width="12" height="12" aria-hidden="true"><rect width="12" height="12" fill="${fillOf(n)}" stroke="var(--line)"/></svg> ${text} &nbsp; `).join("") +
  `<b style="color:var(--bad)">outlined: written again before its round was read</b>`;
function fillOf(state) { return ["var(--soft)", colorOf(0), "#999999", colorOf(1)][state]; }
function stateAt(step) {
  const slots = Array.from({length: data.slots}, () => ({state: 0, round: -1, lost: false}));
  const read = new Set(), full = [];
  let signals = 0, credits = 0, lost = 0;
  for (let i = 0; i <= step; i++) {
    const [kind, round] = data.events[i], slot = slots[round % data.slots];
    if (kind === 0) {
      slot.lost = slot.round >= 0 && !read.has(slot.round);
      lost += slot.lost;
      slot.round = round;
      slot.state = 1;
    } else if (kind === 1) { signals++; if (slot.round === round) slot.state = 2; }
    else if (kind === 2) { if (slot.round === round) slot.state = 3; }
    else { credits++; read.add(round); if (slot.round === round) { slot.state = 0; slot.lost = false; } }
    full.push(slots.filter((s) => s.state !== 0).length);
  }
  return {slots, signals, credits, lost, full};
}
function draw() {
  const {slots, signals, credits, lost, full} = stateAt(at), [kind, round] = data.events[at];
  const size = Math.min(90, 900 / data.slots), out = [];
  slots.forEach((slot, number) => {
    const x = 50 + number * (size + 8), acts = round % data.slots === number;
    out.push(`<rect x="${x}" y="30" width="${size}" height="70" fill="${fillOf(slot.state)}" stroke="${slot.lost ? "var(--bad)" : acts ? "var(--ink)" : "var(--line)"}" stroke-width="${slot.lost ? 6 : acts ? 3 : 1}"/>`,
      `<text x="${x + size / 2}" y="20" text-anchor="middle">slot ${number}</text>`,
      slot.state ? `<text x="${x + size / 2}" y="70" text-anchor="middle" style="font-size:15px;fill:${slot.state === 2 ? "#000" : slot.state === 1 ? "#fff" : "#000"}">${slot.round}</text>` : "");
  });
  const left = 50, right = 970, top = 150, bottom = 260, x = (i) => left + (right - left) * i / Math.max(1, data.events.length - 1);
  const y = (n) => bottom - (bottom - top) * n / data.slots;
  const all = stateAt(data.events.length - 1).full;
  out.push(`<text x="${left}" y="${top - 12}">slots in use</text>`);
  for (let n = 0; n <= data.slots; n++) out.push(`<line x1="${left}" x2="${right}" y1="${y(n)}" y2="${y(n)}" stroke="var(--line)"/><text x="${left - 8}" y="${y(n) + 4}" text-anchor="end">${n}</text>`);
  const path = (values) => values.map((n, i) => `${i ? `H${x(i)}` : `M${x(0)} ${y(n)}`}V${y(n)}`).join("");
  out.push(`<path d="${path(all)}" fill="none" stroke="#999999" stroke-width="1.5"/><path d="${path(full)}" fill="none" stroke="${colorOf(0)}" stroke-width="3"/>`,
    `<line x1="${x(at)}" x2="${x(at)}" y1="${top - 6}" y2="${bottom + 6}" stroke="var(--ink)"/>`);
  $("chart").setAttribute("viewBox", "0 0 1000 280");
  $("chart").innerHTML = out.join("");
  const said = `${WORDS[kind]} round ${round} (slot ${round % data.slots}). Signals: ${signals}, credits: ${credits}; ` +
    `${full[at]} of ${data.slots} slots are in use` + (lost ? `; rounds that were overwritten before they were read: ${lost}` : "");
  $("now").textContent = said;
  $("now").style.borderColor = lost ? "var(--bad)" : colorOf(kind < 2 ? 0 : 1);
  $("count").textContent = `${at + 1} of ${data.events.length}`;
  $("slider").value = at;
  $("slider").setAttribute("aria-valuetext", said);
}
function go(next) {
  at = Math.max(0, Math.min(data.events.length - 1, next));
  draw();
}
$("slider").oninput = () => go(Number($("slider").value));
$("back").onclick = () => go(at - 1);
$("on").onclick = () => go(at + 1);
onKeys({ArrowRight: () => go(at + 1), ArrowLeft: () => go(at - 1), Home: () => go(0), End: () => go(data.events.length - 1)});
draw();
