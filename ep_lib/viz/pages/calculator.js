// The page of ep_lib.viz.calculator. Rows that leave: as docs/performance.md derives them.
const FIELDS = ["tokens", "hidden", "topk", "experts", "ranks", "dtype", "link"];
const SCALE_GROUP = 128;
data.links.forEach((link, n) => $("link").insertAdjacentHTML("beforeend", `<option value="${n}">${escape(link.name)}, ${link.gbps.toFixed(0)} GB/s</option>`));
$("about").textContent = "The floor is the time in which the link carries the bytes that must leave a rank, with random routing.";
const kinds = [...new Set(data.points.map((point) => point.by))];
function answer() {
  const [tokens, hidden, topk, experts, ranks] = FIELDS.slice(0, 5).map((id) => Number($(id).value)), link = data.links[Number($("link").value)];
  const wrong = FIELDS.slice(0, 5).find((id) => !Number.isInteger(Number($(id).value)) || Number($(id).value) < Number($(id).min));
  if (wrong) return {error: `${wrong} must be a whole number from ${$(wrong).min} on`};
  if (experts % ranks) return {error: `${experts} experts cannot be spread evenly over ${ranks} ranks`};
  if (topk > experts) return {error: `a token cannot choose ${topk} of ${experts} experts`};
  let missed = 1;  // the probability that none of a token's experts is on a given rank
  for (let i = 0; i < topk; i++) missed *= Math.max(0, experts - experts / ranks - i) / (experts - i);
  const row = $("dtype").value === "fp8" ? hidden + 4 * Math.ceil(hidden / SCALE_GROUP) : 2 * hidden;
  const leave = tokens * (ranks - 1) * (1 - missed), sent = tokens * ranks * (1 - missed);
  const bytes = leave * row, us = bytes / link.gbps / 1e3 + link.latency_us;
  return {link, row, leave, sent, bytes, us, tokens, topk, logical: sent * row / us / 1e3, wire: bytes / us / 1e3, choices: tokens * topk * row / us / 1e3};
}
const bytesText = (n) => n >= 1e9 ? `${(n / 1e9).toFixed(2)} GB` : n >= 1e6 ? `${(n / 1e6).toFixed(1)} MB` : n >= 1e3 ? `${(n / 1e3).toFixed(1)} kB` : `${n.toFixed(0)} B`;
const usText = (n) => n >= 100 ? n.toFixed(0) : n.toFixed(1);
function draw() {
  const a = answer();
  if (a.error) {
    $("now").textContent = a.error;
    $("now").style.borderColor = "var(--bad)";
    return;
  }
  $("now").style.borderColor = colorOf(0);
  $("now").textContent = `At least ${usText(a.us)} us: ${bytesText(a.bytes)} leave each rank (${a.leave.toFixed(0)} rows of ${a.row.toLocaleString("en")} bytes) at ${a.link.gbps.toFixed(0)} GB/s` +
    (a.link.latency_us ? `, after ${a.link.latency_us.toFixed(2)} us of latency` : "") + `. The same time counted as logical GB/s: ${a.logical.toFixed(0)}; one row for each choice: ${a.choices.toFixed(0)}.`;
  const xs = [...data.points.map((p) => p.bytes), a.bytes, 1e5], ys = [...data.points.map((p) => p.us), a.us, 1];
  const box = {left: 70, right: 720, top: 12, bottom: 360};
  const lx = [Math.floor(Math.log10(Math.min(...xs))), Math.ceil(Math.log10(Math.max(...xs)))], ly = [Math.floor(Math.log10(Math.min(...ys))), Math.ceil(Math.log10(Math.max(...ys)))];
  const x = (v) => box.left + (box.right - box.left) * (Math.log10(v) - lx[0]) / (lx[1] - lx[0]), y = (v) => box.bottom - (box.bottom - box.top) * (Math.log10(v) - ly[0]) / (ly[1] - ly[0]);
  const out = [];
  for (let e = lx[0]; e <= lx[1]; e++) out.push(`<line x1="${x(10 ** e)}" x2="${x(10 ** e)}" y1="${box.top}" y2="${box.bottom}" stroke="var(--line)"/><text x="${x(10 ** e)}" y="${box.bottom + 16}" text-anchor="middle">${bytesText(10 ** e)}</text>`);
  for (let e = ly[0]; e <= ly[1]; e++) out.push(`<line x1="${box.left}" x2="${box.right}" y1="${y(10 ** e)}" y2="${y(10 ** e)}" stroke="var(--line)"/><text x="${box.left - 8}" y="${y(10 ** e) + 4}" text-anchor="end">${10 ** e} us</text>`);
  const line = [];
  for (let e = lx[0]; e <= lx[1]; e += 0.05) {
    const us = 10 ** e / a.link.gbps / 1e3 + a.link.latency_us;
    if (us >= 10 ** ly[0] && us <= 10 ** ly[1]) line.push(`${x(10 ** e)} ${y(us)}`);
  }
  out.push(`<path d="M${line.join("L")}" fill="none" stroke="var(--ink)" stroke-width="2"/>`);
  const shapes = [(px, py, c) => `<circle cx="${px}" cy="${py}" r="5" fill="${c}"/>`, (px, py, c) => `<rect x="${px - 5}" y="${py - 5}" width="10" height="10" fill="${c}"/>`,
    (px, py, c) => `<path d="M${px} ${py - 6}l6 11h-12z" fill="${c}"/>`, (px, py, c) => `<path d="M${px} ${py - 7}l6 7l-6 7l-6 -7z" fill="${c}"/>`];
  for (const point of data.points) {
    const n = kinds.indexOf(point.by);
    out.push(`<g><title>${escape(point.by)}, ${escape(point.what)}: ${usText(point.us)} us for ${bytesText(point.bytes)}</title>${shapes[n % 4](x(point.bytes), y(point.us), colorOf(n))}</g>`);
  }
  kinds.forEach((kind, n) => out.push(shapes[n % 4](750, 30 + 22 * n, colorOf(n)), `<text x="766" y="${34 + 22 * n}">${escape(kind)}</text>`));
  out.push(`<line x1="740" x2="760" y1="${30 + 22 * kinds.length}" y2="${30 + 22 * kinds.length}" stroke="var(--ink)" stroke-width="2"/><text x="766" y="${34 + 22 * kinds.length}">floor of the chosen link</text>`);
  out.push(`<path d="M${x(a.bytes) - 9} ${y(a.us) - 9}l18 18m0 -18l-18 18" stroke="var(--bad)" stroke-width="4"/><text x="750" y="${62 + 22 * kinds.length}" style="fill:var(--bad);font-weight:600">✕ what you ask for</text>`);
  out.push(`<text x="${(box.left + box.right) / 2}" y="${box.bottom + 34}" text-anchor="middle">bytes that leave a rank</text>`);
  $("chart").setAttribute("viewBox", "0 0 1000 400");
  $("chart").innerHTML = out.join("");
  const near = [...data.points].sort((p, q) => Math.abs(Math.log(p.bytes / a.bytes)) - Math.abs(Math.log(q.bytes / a.bytes))).slice(0, 8).sort((p, q) => p.us - q.us);
  $("table").innerHTML = near.length ? `<tr><th>nearest by bytes</th><th></th><th>bytes</th><th>us</th><th>GB/s on the wire</th><th>of this link</th></tr>` +
    near.map((p) => `<tr><td>${escape(p.by)}</td><td>${escape(p.what)}</td><td>${bytesText(p.bytes)}</td><td>${usText(p.us)}</td><td>${(p.bytes / p.us / 1e3).toFixed(0)}</td><td>${(100 * p.bytes / p.us / 1e3 / a.link.gbps).toFixed(0)} %</td></tr>`).join("") : "";
}
for (const id of FIELDS) $(id).addEventListener("input", draw);
draw();
