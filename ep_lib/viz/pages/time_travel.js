// The page of ep_lib.viz.time_travel. The state after a step is a row of numbers, as in ep_lib/viz/steps.py: the
// keyframe before it, and the changes of the steps in between. Drawing touches only what differs from what is shown.
const steps = data.steps, count = steps.kind.length;
const KEYFRAME_EVERY = 256, AROUND = 36;  // steps
const DEEPEST = 16;  // columns that a line of source is indented
const MOST_GRIDS = 4;  // of threads, for a rank; the blocks share one if there are more
const K = Object.fromEntries(data.kinds.map((name, number) => [name, number]));

// ---- the state -----------------------------------------------------------------------------------------------------
const keyframes = [];
function apply(state, step) {
  for (let i = data.offsets[step]; i < data.offsets[step + 1]; i++) state[data.slots[i]] = data.values[i];
}
{
  const state = Int32Array.from(data.base);
  for (let step = 0; step < count; step++) {
    apply(state, step);
    if (step % KEYFRAME_EVERY === 0) keyframes.push(state.slice());
  }
}
function stateAfter(step) {
  if (step < 0) return Int32Array.from(data.base);
  const frame = Math.floor(step / KEYFRAME_EVERY), state = keyframes[frame].slice();
  for (let s = frame * KEYFRAME_EVERY + 1; s <= step; s++) apply(state, s);
  return state;
}

// ---- what the numbers mean (steps.py packs them) -------------------------------------------------------------------
const writers = 2 * data.ranks;
function cell(value) {
  const who = Math.floor(value / 4) % writers, step = Math.floor(value / 4 / writers) - 2;
  return {rank: who % data.ranks, nic: who >= data.ranks, step, ordered: value & 1, race: value & 2, written: value > 3};
}
const THREAD = ["absent", "run", "", "done"];
const threadClass = (value) => (value & 3) === 2 ? data.waits[(value >> 2) - 1][0] : THREAD[value & 3];
const arrayAt = (slot) => data.arrays.find((array) => slot >= array.slot && slot < array.slot + array.slots);
const stageNames = ["", "posted", "its source is being read", "being delivered", "complete"];

// ---- the fixed parts -----------------------------------------------------------------------------------------------
let at = -1, active = data.marks.length ? 0 : -1, timer = 0;
const shown = new Int32Array(data.base.length).fill(-1);
const squares = new Array(data.base.length);
$("about").textContent = data.about;
$("slider").max = count - 1;

const [told, list] = $("findings").children;
data.marks.forEach((mark, number) => {
  const [head, ...rest] = mark.text.split("\n");
  const button = document.createElement("button");
  button.textContent = `${number + 1}. ${head}`;
  button.onclick = () => { active = number; go(mark.step); };
  const more = document.createElement("div");
  more.className = "more";
  more.textContent = rest.map((line) => line.replace(/^ {4}/, "")).join("\n");
  list.append(button, more);
});
if (!data.marks.length) $("findings").outerHTML = `<p class="quiet">${escape(data.nothing)}</p>`;
const racing = new Set();  // names of the arrays that findings are about: they come first
for (const mark of data.marks) if (steps.touched[mark.step][0] >= 0) racing.add((arrayAt(steps.touched[mark.step][0]) || {}).name);

const sums = [], panels = new Map();  // a text below each grid; by rank
for (let rank = 0; rank < data.ranks; rank++) {
  const groups = data.groups.filter((group) => group.rank === rank);
  const arrays = data.arrays.filter((array) => array.rank === rank).sort((a, b) => racing.has(b.name) - racing.has(a.name));
  if (!groups.length && !arrays.length) continue;
  const panel = document.createElement("div");
  panel.className = "rank";
  panel.style.setProperty("--c", colorOf(rank));
  panel.innerHTML = `<h2>rank ${rank}</h2>`;
  panels.set(rank, panel);
  const add = (title, first, number, kind, of) => {
    const grid = document.createElement("div");
    grid.className = "grid";
    grid.setAttribute("aria-hidden", "true");
    for (let i = 0; i < number; i++) {
      const square = document.createElement("i");
      square.dataset.slot = first + i;
      squares[first + i] = square;
      grid.append(square);
    }
    const head = document.createElement("h3"), sum = document.createElement("p");
    head.innerHTML = title;
    sum.className = "sum";
    panel.append(head, grid, sum);
    sums.push({element: sum, first, number, kind, of, text: null});
  };
  const each = groups.length && groups[0].unit > 1 ? ", a square is a warp" : "";
  if (groups.length > MOST_GRIDS) {  // they lie one after the other
    const number = groups.reduce((sum, group) => sum + group.slots, 0), threads = groups.reduce((sum, group) => sum + group.threads, 0);
    add(`${groups.length} blocks <span class="quiet">${threads} threads${each}</span>`, groups[0].slot, number, "threads", groups[0]);
  } else {
    for (const group of groups) {
      add(`${escape(group.label)} <span class="quiet">${group.threads} thread${group.threads === 1 ? "" : "s"}${each}</span>`, group.slot, group.slots,
          "threads", group);
    }
  }
  for (const array of arrays) {
    const size = `${escape(array.dtype)} ${array.cell_bytes === array.item_bytes ? "" : `a square is ${array.cell_bytes} bytes`}`;
    const part = array.first ? ` from [${array.first}]` : "";
    add(`${escape(array.name)}${part} <span class="quiet">${array.where === "symmetric" ? "" : array.where + " "}${size}</span>`,
        array.slot, array.slots, "memory", array);
  }
  $("ranks").append(panel);
}
if (data.omitted) {
  $("ranks").insertAdjacentHTML("beforeend", `<p class="sum">${data.omitted} more arrays were touched and are not shown.</p>`);
}

$("legend").children[0].innerHTML = `shapes and colours <span class="quiet">&nbsp; keys: <kbd>←</kbd> <kbd>→</kbd> step (with shift: 10), ` +
  `<kbd>Page</kbd> 100, <kbd>Home</kbd> <kbd>End</kbd>, <kbd>n</kbd> <kbd>p</kbd> finding, <kbd>w</kbd> who wrote this, ` +
  `<kbd>space</kbd> play` + (inFrame ? `, <kbd>Esc</kbd> back to the notebook` : "") + `</span>`;
const sample = (what, text, fill = colorOf(0)) => `<span><svg width="14" height="14" viewBox="0 0 14 14">${shape(what, fill, 7, 7, 5)}</svg> ${text}</span>`;
$("legend").children[1].innerHTML = [
  `<b>steps</b>`,
  sample({kind: K.access, write: true}, "writes"),
  sample({kind: K.access}, "reads"),
  sample({kind: K.access, atomic: true}, "atomically"),
  sample({kind: K.barrier}, "a barrier or fence"),
  sample({kind: K.wait}, "begins to wait"),
  sample({kind: K.resume}, "goes on"),
  sample({kind: K.end}, "ends"),
  ...(data.messages.length ? [sample({kind: K.post}, "posts to its NIC")] : []),
  sample({}, "a launch, a block begins, or a step of a host or NIC"),
  `<span>→ into another rank's memory${data.messages.length ? "; dashed: from a post to what its NIC does" : ""}</span>`,
  `<b>threads</b>`,
  ...[["run", "can run"], ["barrier", "at a barrier"], ["polls", "polls a value"], ["nic", "waits for the NIC"],
      ["warp", "waits for its warp"], ["done", "done"]].map(([c, text]) => `<span><i class="${c}"></i>${text}</span>`),
  `<b>memory</b>`,
  ...Array.from({length: Math.min(data.ranks, 8)}, (_, r) =>
      `<span style="--w:${colorOf(r)}"><i class="mem w"></i>rank ${r} wrote</span>`),
  `<span style="--w:${colorOf(0)}"><i class="mem w u"></i>striped: not yet safe to read, no thread of the reader is ordered after the write</span>`,
  `<span style="--w:${colorOf(0)}"><i class="mem w n"></i>by a NIC</span>`,
  `<span style="--w:${colorOf(0)}"><i class="mem w u race"></i>a race</span>`,
].join("");

// ---- all steps, as a strip -----------------------------------------------------------------------------------------
const KIND_STYLE = (step) => {
  const kind = steps.kind[step];
  if (kind === K.wait) return "#bbbbbb";
  if (kind === K.resume || kind === K.end || kind === K.finish || kind === K.admit) return "#88888844";
  return colorOf(data.lanes[steps.lane[step]].rank);
};
function drawAll() {
  const canvas = $("all"), ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth * ratio, height = canvas.clientHeight * ratio;
  canvas.width = width;
  canvas.height = height;
  const pen = canvas.getContext("2d"), row = height / data.lanes.length;
  for (let s = 0; s < count; s++) {
    pen.fillStyle = KIND_STYLE(s);
    pen.fillRect(s / count * width, steps.lane[s] * row, Math.max(1, width / count), Math.max(1, row - 1));
  }
  pen.fillStyle = "#D55E00";
  for (const mark of data.marks) pen.fillRect(mark.step / count * width - 1, 0, 3, height);
}

// ---- the steps around this one -------------------------------------------------------------------------------------
const ROW = Math.max(7, Math.min(20, 160 / data.lanes.length)), LEFT = 136, WIDTH = 1000;
const postOf = new Map();
for (let s = 0; s < count; s++) if (steps.kind[s] === K.post) postOf.set(steps.message[s], s);
const firstLaneOf = (rank) => data.lanes.findIndex((lane) => lane.rank === rank && lane.kind === "block");
function glyph(step, x, y, size) {
  return shape({kind: steps.kind[step], atomic: steps.atomic[step], write: steps.write[step]}, colorOf(data.lanes[steps.lane[step]].rank), x, y, size);
}
function shape({kind, atomic, write}, fill, x, y, size) {
  const edge = `stroke="var(--ink)" stroke-width="0.7"`;
  if (kind === K.wait) return `<rect x="${x - size}" y="${y - size}" width="${2 * size}" height="${2 * size}" fill="none" stroke="#888" stroke-width="1.5"/>`;
  if (kind === K.resume) return `<path d="M${x - size} ${y - size}l${2 * size} ${size}l${-2 * size} ${size}z" fill="#888"/>`;
  if (kind === K.end || kind === K.finish) return `<path d="M${x - size} ${y - size}l${2 * size} ${2 * size}m0 ${-2 * size}l${-2 * size} ${2 * size}" stroke="#888" stroke-width="1.5"/>`;
  if (kind === K.fence || kind === K.barrier || kind === K.syncwarp || kind === K.named_barrier || kind === K.quiet)
    return `<rect x="${x - 1.5}" y="${y - 1.3 * size}" width="3" height="${2.6 * size}" fill="var(--ink)"/>`;
  if (kind === K.post) return `<path d="M${x} ${y - size}l${size} ${2 * size}h${-2 * size}z" fill="${fill}" ${edge}/>`;
  if (kind === K.access && atomic) return `<path d="M${x} ${y - 1.2 * size}l${1.2 * size} ${1.2 * size}l${-1.2 * size} ${1.2 * size}l${-1.2 * size} ${-1.2 * size}z" fill="${fill}" ${edge}/>`;
  if (kind === K.access && write) return `<rect x="${x - size}" y="${y - size}" width="${2 * size}" height="${2 * size}" fill="${fill}" ${edge}/>`;
  if (kind === K.access) return `<circle cx="${x}" cy="${y}" r="${size}" fill="var(--paper)" stroke="${fill}" stroke-width="2"/>`;
  return `<circle cx="${x}" cy="${y}" r="${size}" fill="${fill}" ${edge}/>`;
}
function drawLanes() {
  const height = data.lanes.length * ROW + 8, size = Math.max(2.5, Math.min(5, ROW / 3));
  const begin = Math.max(0, Math.min(at - AROUND, count - 2 * AROUND - 1)), end = Math.min(count, begin + 2 * AROUND + 1);
  const x = (s) => LEFT + 12 + (s - begin) * (WIDTH - LEFT - 24) / (2 * AROUND), y = (lane) => 4 + (lane + 0.5) * ROW;
  const out = [`<defs><marker id="tip1" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="5" markerHeight="5" orient="auto"><path d="M0 0L6 3L0 6z" fill="context-stroke"/></marker></defs>`];
  data.lanes.forEach((lane, number) => {
    out.push(`<line class="row" x1="${LEFT}" x2="${WIDTH}" y1="${y(number)}" y2="${y(number)}"/>`);
    const label = ROW >= 11 ? `rank ${lane.rank} ${escape(lane.label)}` : number === firstLaneOf(lane.rank) ? `rank ${lane.rank}` : "";
    out.push(`<rect x="0" y="${y(number) - ROW / 2}" width="4" height="${ROW}" fill="${colorOf(lane.rank)}"/><text x="9" y="${y(number) + 4}">${label}</text>`);
  });
  out.push(`<line class="cursor" x1="${x(at)}" x2="${x(at)}" y1="0" y2="${height}"/>`);
  for (let s = begin; s < end; s++) {
    const lane = steps.lane[s], [slot] = steps.touched[s], post = postOf.get(steps.message[s]);
    const array = slot >= 0 && (steps.write[s] || steps.kind[s] === K.nic_write || steps.kind[s] === K.nic_signal) ? arrayAt(slot) : null;
    const target = array && array.rank !== data.lanes[lane].rank ? firstLaneOf(array.rank) : -1;
    const color = colorOf(data.lanes[lane].rank);
    if (target >= 0) out.push(`<line x1="${x(s)}" y1="${y(lane)}" x2="${x(s)}" y2="${y(target) + (target > lane ? -size : size)}" stroke="${color}" stroke-width="1.4" marker-end="url(#tip1)"/>`);
    if (post !== undefined && post !== s) out.push(`<line x1="${Math.max(LEFT, x(post))}" y1="${y(steps.lane[post])}" x2="${x(s)}" y2="${y(lane)}" stroke="${color}" stroke-width="0.8" stroke-dasharray="3 2"/>`);
  }
  for (const mark of data.marks) {
    if (mark.first < 0 || mark.step < begin || mark.first >= end) continue;
    const x1 = Math.max(LEFT, x(mark.first)), x2 = Math.min(WIDTH, x(mark.step));
    out.push(`<path d="M${x1} ${y(steps.lane[mark.first])}L${x2} ${y(steps.lane[mark.step])}" stroke="var(--bad)" stroke-width="3" fill="none"/>`);
  }
  for (let s = begin; s < end; s++) out.push(glyph(s, x(s), y(steps.lane[s]), s === at ? size * 1.45 : size));
  for (const mark of data.marks) if (mark.step >= begin && mark.step < end)
    out.push(`<circle cx="${x(mark.step)}" cy="${y(steps.lane[mark.step])}" r="${size + 5}" fill="none" stroke="var(--bad)" stroke-width="2.5"/>`);
  const svg = $("lanes");
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${height}`);
  svg.innerHTML = out.join("");
  svg.onclick = (event) => {
    const box = svg.getBoundingClientRect(), px = (event.clientX - box.left) / box.width * WIDTH;
    if (px > LEFT) go(Math.round(begin + (px - LEFT - 12) / ((WIDTH - LEFT - 24) / (2 * AROUND))));
  };
}

// ---- the source, with the line of this step and those of the finding -------------------------------------------------
function drawSource() {
  const lit = new Map(), wanted = new Map();  // by "file:line": what is to be said; by file: lines
  const want = (place, step, kind, reach) => {
    if (place < 0) return;
    const [file, line] = data.places[place];
    if (file < 0) return;
    if (!wanted.has(file)) wanted.set(file, new Set());
    for (let l = line - reach; l <= line + reach; l++) wanted.get(file).add(l);
    const key = `${file}:${line}`;
    lit.set(key, [...(lit.get(key) || []), {kind, rank: data.lanes[steps.lane[step]].rank}]);
  };
  const mark = data.marks[active], sides = mark ? [mark.first, mark.step].filter((step) => step >= 0) : [];
  sides.forEach((step, side) => want(mark.places[side], step, "racing", 2));
  want(steps.place[at], at, "at", sides.length ? 2 : 7);
  const out = [];
  for (const [file, lines] of wanted) {
    const text = data.files[file].lines, first = data.files[file].first, names = data.files[file].names;
    const wide = Math.max(4, ...names.map((name) => name.length));
    out.push(`<h3>${escape(data.files[file].name)}</h3><pre>`);
    let last = 0;
    for (const line of [...lines].sort((a, b) => a - b)) {
      if (text[line - first] === undefined) continue;
      if (last && line !== last + 1) out.push(`<span class="gap"></span>`);
      last = line;
      const here = lit.get(`${file}:${line}`) || [], kinds = new Set(here.map(({kind}) => kind));
      const sign = kinds.has("at") ? "▶" : kinds.size ? "!" : " ";
      const ranks = [...new Set(here.filter(({kind}) => kind === "racing").map(({rank}) => rank))];
      const tags = ranks.map((rank) => `<b style="border-color:${colorOf(rank)}">rank ${rank}</b>`).join("");
      const code = escape(text[line - first].replace(/^ +/, (indent) => indent.slice(0, DEEPEST)));
      out.push(`<span class="${[...kinds].join(" ")}"><span class="n">${sign}${escape(names[line - first] || String(line)).padStart(wide)}</span>${code}${tags}</span>`);
    }
    out.push("</pre>");
  }
  const html = out.join("") || `<p class="quiet">This step has no line of a kernel.</p>`;
  if ($("source").dataset.html === html) return;
  $("source").innerHTML = html;
  $("source").dataset.html = html;
  reveal($("source").parentNode, $("source").querySelector(".at"));
}
// Scrolls a panel, and nothing around it, until it shows one of its parts.
function reveal(panel, part) {
  if (!part) return;
  const outer = panel.getBoundingClientRect(), inner = part.getBoundingClientRect();
  if (inner.top < outer.top) panel.scrollTop -= outer.top - inner.top + 8;
  else if (inner.bottom > outer.bottom) panel.scrollTop += inner.bottom - outer.bottom + 8;
}

function drawMessages(state) {
  if (!data.messages.length) return;
  const rows = [];
  let complete = 0, later = 0;
  data.messages.forEach((message, number) => {
    const value = state[data.message_slot + number], stage = value & 7;
    if (stage === 4) complete++;
    if (stage === 0) later++;
    if (stage === 0 || (stage === 4 && steps.message[at] !== number)) return;
    const part = message.bytes ? Math.min(1, (value >> 3) / message.bytes) : stage > 2 ? 1 : 0;
    const mine = steps.message[at] === number ? ' style="font-weight:700"' : "";
    if (rows.length < 24) rows.push(`<tr${mine}><td>${escape(message.text)}</td><td><span class="bar"><b style="width:${100 * part}%;background:${colorOf(message.source)}"></b></span></td><td>${stageNames[stage]}</td></tr>`);
  });
  $("messages").innerHTML = `<h3>messages on their way <span class="quiet">${complete} complete, ${later} not posted yet</span></h3>` +
    (rows.length ? `<table>${rows.join("")}</table>` : `<p class="sum">none</p>`);
}

function sumOf({kind, first, number, of}, state) {
  if (kind === "threads") {
    const counts = new Map();
    for (let s = first; s < first + number; s++) {
      const value = state[s], text = (value & 3) === 2 ? data.waits[(value >> 2) - 1][1] : ["not there", "can run", "", "done"][value & 3];
      counts.set(text, (counts.get(text) || 0) + 1);
    }
    const unit = (n) => of.unit > 1 ? (n === 1 ? " warp" : " warps") : "";
    return [...counts].sort((a, b) => b[1] - a[1]).map(([text, n]) => `${n}${unit(n)}: ${text}`).join("; ");
  }
  const by = new Map();
  let ordered = 0, race = 0, written = 0;
  for (let s = first; s < first + number; s++) {
    const c = cell(state[s]);
    if (c.race) race++;
    if (!c.written) continue;
    written++;
    ordered += c.ordered;
    const who = `${c.nic ? "NIC of " : ""}rank ${c.rank}`;
    by.set(who, (by.get(who) || 0) + 1);
  }
  if (!written) return race ? `${race} in a race` : "no kernel has written here";
  const open = written - ordered;
  return [...by].map(([who, n]) => `${n} of ${number} by ${who}`).join(", ") +
    (open ? `; ${open} not yet safe to read for this rank` : "; all safe to read for this rank") + (race ? `; ${race} in a race` : "");
}

// ---- drawing a step ------------------------------------------------------------------------------------------------
let acting = [];
function draw() {
  const state = stateAfter(at);
  for (const square of acting) square.classList.remove("acts");
  for (let slot = 0; slot < state.length; slot++) {
    if (shown[slot] === state[slot] || !squares[slot]) continue;
    shown[slot] = state[slot];
    const square = squares[slot];
    if (slot < data.message_slot) {
      square.className = threadClass(state[slot]);
      continue;
    }
    const c = cell(state[slot]);
    square.className = "mem" + (c.written ? " w" + (c.ordered ? "" : " u") + (c.nic ? " n" : "") : "") + (c.race ? " race" : "");
    if (c.written) square.style.setProperty("--w", colorOf(c.rank));
  }
  acting = [];
  const [slot, number] = steps.touched[at];
  for (let s = slot; s >= 0 && s < slot + number; s++) acting.push(squares[s]);
  for (let i = data.offsets[at]; i < data.offsets[at + 1]; i++) if (data.slots[i] < data.message_slot) acting.push(squares[data.slots[i]]);
  for (const t of steps.threads[at] || []) if (squares[t]) acting.push(squares[t]);
  acting = acting.filter(Boolean);
  for (const square of acting) square.classList.add("acts");
  for (const sum of sums) {
    const text = sumOf(sum, state);
    if (text !== sum.text) sum.element.textContent = sum.text = text;
  }
  const lane = data.lanes[steps.lane[at]], place = data.places[steps.place[at]];
  const sentence = `${data.whos[steps.who[at]]}: ${data.whats[steps.what[at]]}`;
  $("now").style.borderColor = colorOf(lane.rank);
  $("now").innerHTML = escape(sentence) + `<span class="place">${place ? " at " + escape(place[2]) : ""}</span>`;
  $("count").textContent = `step ${(data.begin + at + 1).toLocaleString("en")} of ${data.total.toLocaleString("en")}`;
  $("slider").value = at;
  $("slider").setAttribute("aria-valuetext", `step ${data.begin + at + 1}: ${sentence}`);
  $("here").style.left = `${100 * (at + 0.5) / count}%`;
  if (acting.length) reveal($("ranks"), acting[acting.length - 1]);
  drawFinding();
  drawLanes();
  drawSource();
  drawMessages(state);
}
function drawFinding() {
  const mark = data.marks[active];
  if (!mark) return;
  const number = data.marks.length > 1 ? `finding ${active + 1} of ${data.marks.length}: ` : "";
  told.textContent = number + mark.text.split("\n")[0];
  [...list.querySelectorAll("button")].forEach((button, n) => button.setAttribute("aria-pressed", n === active));
  const sides = [mark.first, mark.step].filter((step) => step >= 0).map((step) => data.lanes[steps.lane[step]].rank);
  for (const [rank, panel] of panels) panel.style.order = panels.size > 2 && !sides.includes(rank) ? 1 : 0;
}
function go(step) {
  const next = Math.max(0, Math.min(count - 1, step));
  if (next === at) active >= 0 && draw();
  else { at = next; draw(); }
  try { history.replaceState(null, "", `#${at + 1}`); } catch (error) { /* a page inside a notebook has no address */ }
}

const actions = {
  first: () => go(0), last: () => go(count - 1), back: () => go(at - 1), on: () => go(at + 1),
  back10: () => go(at - 10), on10: () => go(at + 10), back100: () => go(at - 100), on100: () => go(at + 100),
  next: () => finding(1), previous: () => finding(-1),
  writer: () => {
    const [slot, number] = steps.touched[at];
    let step = -1;
    const state = stateAfter(at - 1);
    for (let s = slot; s >= 0 && s < slot + number; s++) step = Math.max(step, cell(state[s]).written ? cell(state[s]).step : -1);
    if (step >= 0) { go(step); return; }
    const why = slot < 0 ? "This step touches no memory." : `No step has written this before${writtenLater(slot, number)}.`;
    $("now").querySelector(".why")?.remove();
    $("now").insertAdjacentHTML("beforeend", `<div class="why">${escape(why)}</div>`);
  },
  play: () => {
    if (timer) { clearInterval(timer); timer = 0; return; }
    timer = setInterval(() => { if (at >= count - 1) actions.play(); else go(at + 1); }, 180);
  },
};
function writtenLater(slot, number) {
  for (let s = at + 1; s < count; s++) {
    const [begin, size] = steps.touched[s];
    const writes = steps.write[s] || steps.kind[s] === K.nic_write || steps.kind[s] === K.nic_signal;
    if (writes && begin < slot + number && slot < begin + size) return `: it is written later, in step ${s + 1}`;
  }
  return "";
}
function finding(direction) {
  if (!data.marks.length) return;
  const order = data.marks.map((mark, number) => [mark.step, number]).sort((a, b) => a[0] - b[0]);
  const after = direction > 0 ? order.find(([step]) => step > at) : order.filter(([step]) => step < at).pop();
  const [step, number] = after || (direction > 0 ? order[0] : order[order.length - 1]);
  active = number;
  go(step);
}
const KEYS = {
  ArrowRight: "on", ArrowLeft: "back", ArrowUp: "on", ArrowDown: "back", Home: "first", End: "last", PageDown: "on100",
  PageUp: "back100", n: "next", p: "previous", w: "writer", " ": "play",
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === " " && ["BUTTON", "SUMMARY"].includes(event.target.tagName)) return;
  if (event.target.matches("#ranks, aside") && /^Arrow(Up|Down)$/.test(event.key)) return;  // they scroll
  let action = KEYS[event.key];
  if (!action) return;
  if (event.shiftKey && (action === "on" || action === "back")) action += "10";
  event.preventDefault();
  actions[action]();
});
for (const button of document.querySelectorAll("[data-go]")) button.onclick = () => actions[button.dataset.go]();
$("slider").oninput = () => go(Number($("slider").value));
$("all").onclick = (event) => {
  const box = $("all").getBoundingClientRect();
  go(Math.floor((event.clientX - box.left) / box.width * count));
};
$("ranks").addEventListener("mousemove", (event) => {
  const slot = event.target.dataset ? event.target.dataset.slot : undefined;
  $("tip").hidden = slot === undefined;
  if (slot === undefined) return;
  $("tip").textContent = tell(Number(slot));
  $("tip").style.left = `${Math.min(event.clientX + 12, window.innerWidth - 430)}px`;
  $("tip").style.top = `${event.clientY + 14}px`;
});
$("ranks").addEventListener("mouseleave", () => { $("tip").hidden = true; });
$("ranks").addEventListener("click", (event) => {
  const slot = event.target.dataset ? event.target.dataset.slot : undefined;
  if (slot === undefined || slot < data.message_slot) return;
  const c = cell(stateAfter(at)[slot]);
  if (c.written && c.step >= 0) go(c.step);
});
function tell(slot) {
  const value = stateAfter(at)[slot];
  const group = data.groups.find((g) => slot >= g.slot && slot < g.slot + g.slots);
  if (group) {
    const what = (value & 3) === 2 ? data.waits[(value >> 2) - 1][1] : ["not there", "can run", "", "done"][value & 3];
    return `${group.label}, ${group.unit > 1 ? "warp" : "thread"} ${slot - group.slot}: ${what}`;
  }
  const array = arrayAt(slot);
  if (!array) return "";
  const each = array.cell_bytes / array.item_bytes, index = array.first + (slot - array.slot) * each;
  const name = each === 1 ? `${array.name}[${index}]` : `${array.name}[${index}] to [${index + each - 1}]`;
  const c = cell(value);
  if (!c.written) return `${name}: no kernel has written here`;
  const who = c.step >= 0 ? `${data.whos[steps.who[c.step]]} in step ${data.begin + c.step + 1}` : `rank ${c.rank}, before these steps`;
  return `${name}: written by ${who}; ` + (c.ordered ? "a reader is ordered after it" : "no reader is ordered after it") + (c.race ? "; a race" : "");
}
let folded = [];  // on paper everything is unfolded
window.addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  for (const fold of folded) fold.open = true;
});
window.addEventListener("afterprint", () => { for (const fold of folded) fold.open = false; });
new ResizeObserver(drawAll).observe($("all"));  // also once it has a size: a notebook's frame has none at first
const asked = Number((window.location.hash || "").slice(1));
go(asked >= 1 ? asked - 1 : data.marks.length ? data.marks[0].step : 0);
