"use strict";
// Draws the page of what the element "content" holds. Whatever comes from a run is put in as text, never as elements.
const SVG = "http://www.w3.org/2000/svg";
const hidden = new Set(); // lines that the reader has put away, by chart and name
const zoomed = new Map(); // ranges of rounds that the reader has chosen, by chart
const opened = new Set(); // parts that the reader has unfolded

function make(tag, attributes = {}, ...children) {
  const drawn = ["svg", "g", "path", "line", "circle", "rect", "text", "clipPath", "title"].includes(tag);
  const element = drawn ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}
const colour = (i) => `var(--c${i % 8})`;
const finite = (values) => values.filter((value) => value !== null && Number.isFinite(value));

function show(value, unit = "") {
  if (value === null || value === undefined || !Number.isFinite(value)) return "none";
  if (unit === "bytes") {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let i = 0;
    for (; Math.abs(value) >= 1000 && i < 4; i++) value /= 1000;
    return `${Number(value.toPrecision(3))} ${units[i]}`;
  }
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-4 || size >= 1e7) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

function ticks(low, high, count, log) {
  if (log) {
    const all = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
      for (const digit of [1, 2, 5]) all.push(digit * 10 ** power);
    const inside = all.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
    const whole = inside.filter((tick) => /^1(e|0*$)|^0\.0*1$/.test(String(tick)));
    return inside.length > 2 * count && whole.length > 1 ? whole : inside;
  }
  const rough = (high - low) / count, unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((digit) => digit * unit).find((each) => each >= rough * 0.999);
  const found = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-9; tick += step)
    found.push(Math.abs(tick) < step * 1e-9 ? 0 : Number(tick.toPrecision(12)));
  return found;
}

function scale(low, high, from, to, log) {
  const at = log ? Math.log : (value) => value;
  const span = at(high) - at(low) || 1;
  const map = (value) => from + ((at(value) - at(low)) / span) * (to - from);
  map.back = (pixel) => {
    const value = at(low) + ((pixel - from) / (to - from)) * span;
    return log ? Math.exp(value) : value;
  };
  return map;
}

function path(x, y, sx, sy) {
  let text = "", pen = "M";
  for (let i = 0; i < x.length; i++) {
    if (y[i] === null || !Number.isFinite(sy(y[i]))) { pen = "M"; continue; }
    text += `${pen}${sx(x[i]).toFixed(1)} ${sy(y[i]).toFixed(1)}`;
    pen = "L";
  }
  return text;
}

function area(x, low, high, sx, sy) {
  const at = x.map((_, i) => i).filter((i) => low[i] !== null && high[i] !== null);
  const point = (i, y) => `${sx(x[i]).toFixed(1)} ${sy(y[i]).toFixed(1)}`;
  if (at.length < 2) return "";
  return `M${at.map((i) => point(i, high)).join("L")}L${at.reverse().map((i) => point(i, low)).join("L")}Z`;
}

// The frame of every picture: axes, the part of it that is seen, and what a pointer does.
function frame(spec, ranges, paint, nearest) {
  const width = Math.max(spec.box.clientWidth - 18, 220), height = 230;
  const left = 54, right = width - 8, top = 8, bottom = height - 34;
  const { x: [xl, xh], y: [yl, yh], logX, logY } = ranges;
  const sx = scale(xl, xh, left, right, logX), sy = scale(yl, yh, bottom, top, logY);
  const clip = `clip-${spec.key}`.replace(/[^\w-]/g, "_") + spec.number;
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": spec.title });
  for (const tick of ticks(yl, yh, 4, logY)) {
    svg.append(make("line", { class: "grid", x1: left, x2: right, y1: sy(tick), y2: sy(tick) }));
    svg.append(make("text", { x: left - 5, y: sy(tick) + 4, "text-anchor": "end" }, show(tick, spec.unit)));
  }
  let marks = ticks(xl, xh, Math.max(3, Math.floor(width / 90)), logX);
  if (spec.whole) marks = marks.filter(Number.isInteger);
  if (spec.whole && xl === 1) marks = [1, ...marks.filter((tick) => sx(tick) > left + 30)]; // rounds count from 1
  for (const tick of marks)
    svg.append(make("text", { x: sx(tick), y: bottom + 15, "text-anchor": sx(tick) > right - 12 ? "end" : "middle" }, show(tick)));
  svg.append(make("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
  svg.append(make("text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, spec.across));
  svg.append(make("clipPath", { id: clip }, make("rect", { x: left, y: top - 4, width: right - left + 7, height: bottom - top + 8 })));
  const ground = make("g", { "clip-path": `url(#${clip})` });
  paint(ground, sx, sy, left, right, top, bottom);
  const cross = make("line", { class: "cross", y1: top, y2: bottom, visibility: "hidden" });
  const chosen = make("rect", { class: "chosen", y: top, height: bottom - top, visibility: "hidden" });
  svg.append(ground, cross, chosen);
  pointing(spec, svg, { sx, sy, left, right, cross, chosen, width }, nearest);
  return svg;
}

function pointing(spec, svg, at, nearest) {
  let start = null;
  const place = (event) => {
    const box = svg.getBoundingClientRect(), grow = at.width / box.width;
    return [(event.clientX - box.left) * grow, (event.clientY - box.top) * grow];
  };
  const hide = () => { spec.tip.hidden = true; at.cross.setAttribute("visibility", "hidden"); };
  svg.addEventListener("pointerdown", (event) => {
    start = place(event)[0];
    if (event.pointerType === "mouse") svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (start !== null && event.buttons && Math.abs(x - start) > 6) {
      at.chosen.setAttribute("visibility", "visible");
      at.chosen.setAttribute("x", Math.max(Math.min(x, start), at.left));
      at.chosen.setAttribute("width", Math.abs(x - start));
    }
    const found = nearest(at.sx, at.sy, x, y);
    if (!found) return hide();
    at.cross.setAttribute("visibility", "visible");
    at.cross.setAttribute("x1", at.sx(found.x));
    at.cross.setAttribute("x2", at.sx(found.x));
    spec.tip.replaceChildren(...found.lines.map((line) => make("div", {}, line)));
    spec.tip.hidden = false;
    spec.tip.style.top = `${svg.offsetTop + 10}px`;
    spec.tip.style.left = at.sx(found.x) < at.width / 2 ? "" : "12px";
    spec.tip.style.right = at.sx(found.x) < at.width / 2 ? "12px" : "";
  });
  svg.addEventListener("pointerup", (event) => {
    const end = place(event)[0];
    if (start !== null && Math.abs(end - start) > 10) {
      const ends = [start, end].sort((a, b) => a - b).map((pixel) => at.sx.back(Math.min(Math.max(pixel, at.left), at.right)));
      zoomed.set(spec.key, ends);
      spec.draw();
    }
    start = null;
    at.chosen.setAttribute("visibility", "hidden");
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("dblclick", () => { zoomed.delete(spec.key); spec.draw(); });
}

let figures = [];
function figure(key, title, about, names, plot) {
  const tip = make("div", { class: "tip" }), picture = make("div"), legend = make("div", { class: "legend" });
  tip.hidden = true;
  const reset = make("button", { class: "reset", type: "button", onclick: () => { zoomed.delete(key); draw(); } }, "whole range");
  const box = make("figure", {}, make("figcaption", {}, make("h3", {}, title), make("div", { class: "soft" }, ...about)), reset, picture, legend, tip);
  const spec = { key, title, box, tip, number: figures.length };
  function draw() {
    reset.hidden = !zoomed.has(key);
    tip.hidden = true;
    picture.replaceChildren(plot(spec));
    legend.replaceChildren(...names.map(([name, mark]) => {
      const put = hidden.has(`${key}/${name}`);
      const swap = () => { if (!hidden.delete(`${key}/${name}`)) hidden.add(`${key}/${name}`); draw(); };
      return make("button", { type: "button", class: put ? "hidden" : "", "aria-pressed": String(!put), title: "show or hide", onclick: swap },
        make("span", { class: "key", style: { background: mark } }), name);
    }));
  }
  spec.draw = draw;
  figures.push(spec);
  return box;
}

function spread(values, share) {
  const low = Math.min(...values), high = Math.max(...values), room = (high - low || Math.abs(high) || 1) * share;
  return [low - room, high + room];
}

// Lines against rounds, one of each run, with the band of its seeds, its bounds, and its answers.
function lines(name, runs) {
  const all = runs.map((run, i) => ({ run, i, chart: run.charts.find((chart) => chart.name === name) })).filter((one) => one.chart);
  const first = all[0].chart, key = `lines/${name}`;
  const several = runs.length > 1, label = (one) => (several ? one.run.label : seeds(one.run));
  const names = all.map((one) => [label(one), colour(one.i)]);
  if (first.spread && !several) names.push(["best to worst client", "var(--soft)"]);
  const each = Math.max(...all.map((one) => one.chart.line.each));
  const about = make("span", {}, first.about + (each > 1 ? `; a point is up to ${each} rounds, the band their least to largest` : ""));
  const cut = make("span");
  return figure(key, first.title, [about, cut], names, (spec) => {
    const seen = all.filter((one) => !hidden.has(`${key}/${label(one)}`));
    const ends = Math.max(...all.map((one) => Math.max(one.run.done, 2)));
    const x = zoomed.get(key) || [1, ends];
    const inside = (line, values) => values.filter((_, i) => line.x[i] >= x[0] && line.x[i] <= x[1]);
    const later = zoomed.has(key) ? x[0] : ends / 2; // courses may start far from where they settle
    const bounds = [...new Set(seen.flatMap((one) => one.chart.bounds || []))];
    const marks = seen.flatMap((one) => one.chart.answers || []).filter((mark) => mark.round >= x[0] && mark.round <= x[1]);
    const among = several || hidden.has(`${key}/best to worst client`) ? [] : seen.map((one) => one.chart.spread).filter(Boolean);
    const values = finite([...seen.flatMap(({ chart: { line } }) => [...inside(line, line.low), ...inside(line, line.high)]),
      ...among.flatMap((clients) => [...inside(clients, clients.best), ...inside(clients, clients.worst)])]);
    const settled = finite(seen.flatMap(({ chart: { line } }) => line.high.filter((_, i) => line.x[i] >= later && line.x[i] <= x[1])));
    const found = finite(marks.flatMap((mark) => [mark.train, mark.test]));
    let y = spread([...values, ...bounds, ...found, ...(values.length ? [] : [0, 1])], 0.05);
    const logY = name === "objective" && values.length > 0 && Math.min(...values) > 0 && Math.max(...values) > 10 * Math.min(...values);
    if (logY) y = [Math.min(...values, ...found) * 0.9, Math.max(...values, ...found) * 1.1];
    else if (bounds.length && settled.length && bounds[0] > 0)
      y[1] = Math.min(y[1], Math.max(3 * Math.max(...bounds), ...settled.map((value) => 1.1 * value), ...found.map((value) => 1.05 * value)));
    if (!bounds.length && !first.bounds && Math.min(...values) >= 0) y[0] = 0;
    const most = values.length ? Math.max(...values) : y[1];
    cut.textContent = most > y[1] ? `; cut off above, where it is up to ${show(most, first.unit)}` : "";
    Object.assign(spec, { across: "round", whole: true, unit: first.unit });
    return frame(spec, { x, y, logY }, (ground, sx, sy, left, right) => {
      const plain = several || hidden.has(`${key}/best to worst client`);
      // totals of two runs may be the same: dashes let the one below be seen
      seen.forEach((one, place) => draw_line(ground, one, sx, sy, plain, first.unit === "bytes" && place > 0 ? "7 7" : "none"));
      for (const bound of bounds) ground.append(make("line", { class: "bound", x1: left, x2: right, y1: sy(bound), y2: sy(bound) }));
      for (const one of seen) answers(ground, one.chart.answers || [], sx, sy, colour(one.i));
    }, (sx, _, pixel) => told(seen, sx, pixel, label, first.unit, bounds));
  });
}

function draw_line(ground, { chart, i }, sx, sy, plain, dashes) {
  const { line, spread: among } = chart;
  if (among && !plain) {
    ground.append(make("path", { class: "band", d: area(among.x, among.best, among.worst, sx, sy), fill: "var(--soft)" }));
    ground.append(make("path", { class: "line thin", d: path(among.x, among.median, sx, sy), stroke: "var(--soft)" }));
  }
  ground.append(make("path", { class: "band", d: area(line.x, line.low, line.high, sx, sy), fill: colour(i) }));
  ground.append(make("path", { class: "line", d: path(line.x, line.mean, sx, sy), stroke: colour(i), "stroke-dasharray": dashes }));
  if (line.x.length === 1 && line.mean[0] !== null)
    ground.append(make("circle", { cx: sx(line.x[0]), cy: sy(line.mean[0]), r: 3, fill: colour(i) }));
}

function diamond(x, y, size, attributes) {
  return make("path", { d: `M${x - size} ${y}L${x} ${y - size}L${x + size} ${y}L${x} ${y + size}Z`, ...attributes });
}

function answers(ground, marks, sx, sy, stroke) {
  for (const mark of marks) {
    if (mark.train !== null) ground.append(diamond(sx(mark.round), sy(mark.train), 5, { fill: stroke, stroke: "var(--paper)", class: "answer" }));
    if (mark.test !== null && mark.test !== undefined)
      ground.append(diamond(sx(mark.round), sy(mark.test), 5, { fill: "var(--paper)", stroke, "stroke-width": 1.6, class: "answer" }));
  }
}

function told(seen, sx, pixel, label, unit, bounds) {
  let best = null;
  for (const { chart: { line } } of seen)
    for (const x of line.x) if (best === null || Math.abs(sx(x) - pixel) < Math.abs(sx(best) - pixel)) best = x;
  if (best === null) return null;
  const texts = [`round ${show(Math.round(best))}`];
  for (const one of seen) {
    const line = one.chart.line, i = line.x.findIndex((x) => x >= best - 1e-9);
    if (i < 0 || line.mean[i] === null) continue;
    const range = line.low[i] === line.high[i] ? "" : ` (${show(line.low[i], unit)} .. ${show(line.high[i], unit)})`;
    texts.push(`${label(one)}: ${show(line.mean[i], unit)}${range}`);
  }
  if (bounds.length) texts.push(`bound ${bounds.map((bound) => show(bound)).join(" and ")}`);
  return { x: best, lines: texts };
}

// Objective against how far past a bound: every evaluated round, and the answers.
function plane(runs) {
  const all = runs.map((run, i) => ({ run, i, plane: run.plane })).filter((one) => one.plane && one.plane.x.length);
  if (!all.length) return null;
  const key = "plane", label = (one) => (runs.length > 1 ? one.run.label : "rounds");
  const shown = all.reduce((sum, one) => sum + one.plane.x.length, 0), there = all.reduce((sum, one) => sum + one.plane.of, 0);
  const marked = all.some((one) => one.plane.answers.train), held = all.some((one) => one.plane.answers.test);
  const about = `each dot an evaluated round${shown < there ? `, ${shown} of ${there}` : ""}; left of the line every bound is kept`
    + (marked ? `; the diamonds are the answers${held ? " (hollow: held out)" : ""}` : "");
  return figure(key, "Objective against violation", [about], all.map((one) => [label(one), colour(one.i)]), (spec) => {
    const seen = all.filter((one) => !hidden.has(`${key}/${label(one)}`));
    const marks = seen.flatMap((one) => Object.values(one.plane.answers));
    const xs = finite([...seen.flatMap((one) => one.plane.x), ...marks.flatMap((mark) => mark.x), 0]).sort((a, b) => a - b);
    const ys = finite([...seen.flatMap((one) => one.plane.y), ...marks.flatMap((mark) => mark.y)]);
    const typical = xs[Math.floor(xs.length * 0.9)]; // the first rounds may be far out
    const far = Math.max(typical, ...finite(marks.flatMap((mark) => mark.x)), 0, (0 - xs[0]) / 2) * 1.3 || xs[xs.length - 1];
    const x = zoomed.get(key) || spread([xs[0], Math.min(xs[xs.length - 1], far)], 0.06);
    const logY = ys.length > 0 && Math.min(...ys) > 0 && Math.max(...ys) > 10 * Math.min(...ys);
    const y = logY ? [Math.min(...ys) * 0.9, Math.max(...ys) * 1.1] : spread(ys.length ? ys : [0, 1], 0.06);
    Object.assign(spec, { across: "furthest past a bound (0: at it)", whole: false, unit: "" });
    return frame(spec, { x, y, logY }, (ground, sx, sy, _l, _r, top, bottom) => {
      for (const one of seen)
        one.plane.x.forEach((value, i) => ground.append(make("circle", { class: "dot", cx: sx(value).toFixed(1), cy: sy(one.plane.y[i]).toFixed(1), r: 2.4, fill: colour(one.i) })));
      ground.append(make("line", { class: "bound", x1: sx(0), x2: sx(0), y1: top, y2: bottom }));
      for (const one of seen)
        for (const [part, mark] of Object.entries(one.plane.answers))
          mark.x.forEach((value, i) => {
            if (value === null || mark.y[i] === null) return;
            const fill = part === "train" ? colour(one.i) : "var(--paper)";
            ground.append(diamond(sx(value), sy(mark.y[i]), 6, { fill, stroke: part === "train" ? "var(--ink)" : colour(one.i), "stroke-width": 1.6, class: "answer" }));
          });
    }, (sx, sy, px, py) => {
      let best = null, least = 900;
      for (const one of seen)
        one.plane.x.forEach((value, i) => {
          const far = (sx(value) - px) ** 2 + (sy(one.plane.y[i]) - py) ** 2;
          if (far < least) [best, least] = [{ one, i, x: value }, far];
        });
      if (!best) return null;
      const { one, i } = best, points = one.plane;
      return { x: best.x, lines: [`${label(one)}: round ${points.round[i]}, seed ${points.seed[i]}`, `objective ${show(points.y[i])}`, `past a bound by ${show(points.x[i])}`] };
    });
  });
}

function seeds(run) {
  return run.seeds.length > 1 ? `mean of ${run.seeds.length} seeds` : `seed ${run.seeds[0]}`;
}

function table(heads, rows) {
  const cell = (tag) => (text) => make(tag, {}, text);
  const head = heads.length ? make("thead", {}, make("tr", {}, ...heads.map(cell("th")))) : null;
  return make("div", { class: "scroll" }, make("table", {}, head, make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map(cell("td")))))));
}

function fold(key, title, ...children) {
  const details = make("details", { ontoggle: () => (details.open ? opened.add(key) : opened.delete(key)) }, make("summary", {}, title), ...children);
  details.open = opened.has(key);
  return details;
}

// The verdict, first: the answer's values against their bounds, then the rest in words.
function verdict(run, several) {
  const box = make("section", { class: `run ${run.state}` });
  if (several) box.append(make("p", { class: "soft" }, run.label));
  box.append(make("h1", {}, run.headline || `Round ${run.done} of ${run.rounds}`), make("p", { class: "soft" }, run.method));
  if (run.state === "running") box.append(make("progress", { max: run.rounds, value: run.done }));
  if (run.answer.length) {
    const parts = Object.keys(run.answer[0].parts), words = { train: "training data", test: "held-out data" };
    const rows = run.answer.map((row) => make("tr", {}, make("td", {}, row.name), make("td", {}, row.bound),
      ...parts.map((part) => make("td", { class: row.parts[part].within === null ? "" : row.parts[part].within ? "within" : "over" },
        `${row.parts[part].text}${row.parts[part].judged ? `, ${row.parts[part].judged}` : ""}`))));
    const heads = ["answer", "bound", ...parts.map((part) => words[part] || part)].map((head) => make("th", {}, head));
    box.append(make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows))));
  }
  if (run.about) box.append(make("pre", {}, run.about));
  if (run.verdict) box.append(fold(`verdict/${run.label}`, "the whole verdict", make("pre", {}, run.verdict)));
  return box;
}

function clients(run) {
  const rows = run.clients.rows, most = Math.max(1, ...rows.map((row) => row.seconds));
  const count = (row) => Object.values(row.left_out).reduce((sum, each) => sum + each, 0);
  const asked = Math.max(1, ...rows.map((row) => row.answered + count(row)));
  const bar = (text, share, kind = "") => make("div", {}, text, make("span", { class: `bar ${kind}`, style: { width: `${(6 * share).toFixed(2)}em` } }));
  const cells = rows.map((row) => {
    const why = Object.entries(row.left_out).map(([reason, times]) => `${reason} (${times})`).join("; ");
    const left = count(row);
    const state = row.gone ? make("span", { class: "failed-text" }, row.gone) : row.now || "";
    return [row.name, state, bar(String(row.answered), row.answered / asked), left ? bar(String(left), left / asked, "left-out") : "0",
      show(row.frames_up, "bytes"), show(row.frames_down, "bytes"), bar(show(row.seconds), row.seconds / most), why];
  });
  const live = rows.some((row) => row.gone || row.now);
  const heads = ["client", "now", "answered", "left out", "up", "down", "seconds", "why left out"], drop = (row) => row.filter((_, i) => live || i !== 1);
  const more = run.clients.more ? make("p", { class: "soft" }, `and ${run.clients.more} clients more`) : null;
  return make("div", { class: "clients" }, table(drop(heads), cells.map(drop)), more);
}

function worst(run) {
  const value = (row) => (row.low === null ? "" : row.low === row.high ? show(row.low) : `${show(row.low)} .. ${show(row.high)}`);
  const judged = (row) => (row.within === null ? "" : make("span", { class: row.within ? "within" : "over" }, row.within ? "within" : "over"));
  const bound = (row) => (run.answer.find((each) => each.name === row.of) || { bound: "" }).bound;
  const counted = run.worst.some((row) => row.rounds), known = run.worst.some((row) => row.low !== null);
  const heads = ["value", "bound", "client", ...(known ? ["its own, at the answer", ""] : []), ...(counted ? ["the worst in rounds"] : [])];
  const first = (row, i) => (i === 0 || run.worst[i - 1].of !== row.of);
  const rows = run.worst.map((row, i) => [first(row, i) ? row.of : "", first(row, i) ? bound(row) : "", row.client, ...(known ? [value(row), judged(row)] : []), ...(counted ? [row.rounds] : [])]);
  return table(heads, rows);
}

function again(run) {
  const [command, file] = run.again;
  return make("div", {}, make("pre", { class: "command" }, command), file ? fold(`again/${run.label}`, "settings.toml", make("pre", {}, file)) : null);
}

// A part of the page that some runs have, each under its own name where there are several.
function part(title, runs, has, body) {
  const found = runs.filter(has);
  if (!found.length) return [];
  return [make("h2", {}, title), ...found.flatMap((run) => (runs.length > 1 ? [make("h3", {}, run.label), body(run)] : [body(run)]))];
}

function draw(content) {
  const runs = content.runs, several = runs.length > 1;
  figures = [];
  const names = [...new Set(runs.flatMap((run) => run.charts.map((chart) => chart.name)))];
  const values = new Set(runs.flatMap((run) => run.charts.filter((chart) => chart.bounds).map((chart) => chart.name)));
  const group = (title, list) => (list.length ? [make("h2", {}, title), make("div", { class: "charts" }, ...list)] : []);
  const charts = (which) => names.filter(which).map((name) => lines(name, runs));
  const marked = runs.some((run) => run.answer.length), held = runs.some((run) => run.answer.some((row) => row.parts.test));
  const bands = runs.some((run) => run.seeds.length > 1), bounded = runs.some((run) => run.charts.some((chart) => (chart.bounds || []).length));
  const legend = (bounded ? "Dotted: the bound. " : "")
    + (marked ? `Diamonds: the answers${held ? ", filled on training data, hollow on held-out data" : ""}. ` : "")
    + (bands ? "Band: from the least seed to the largest. " : "")
    + "Drag to zoom, double-click for the whole range, press a name to hide its line.";
  const scatter = plane(runs);
  document.getElementById("page").replaceChildren(
    ...(content.live ? [make("p", { class: "soft", id: "live" }, content.live)] : []),
    ...(content.note ? [make("p", { id: "note" }, content.note)] : []),
    ...runs.map((run) => verdict(run, several)),
    ...group("Course", charts((name) => values.has(name))),
    ...(names.length ? [make("p", { class: "soft" }, legend)] : []),
    ...group("Switching and trade-off", [...charts((name) => name === "weight" || name === "multiplier"), ...(scatter ? [scatter] : [])]),
    ...group("Traffic and participation", charts((name) => name.startsWith("bytes_") || name === "answered")),
    ...part("Clients", runs, (run) => run.clients.rows.length, clients),
    ...part("Worst clients", runs, (run) => run.worst.length, worst),
    ...part("Certificate", runs, (run) => run.certificate.length, (run) => table([], run.certificate)),
    ...part("Settings", runs, () => true, (run) => fold(`settings/${run.label}`, `${run.settings.length} settings`, table(["setting", "value"], run.settings))),
    ...part("Run it again", runs, (run) => run.again.length, again),
  );
  for (const each of figures) each.draw();
}

let width = 0, missed = 0;
function follow(content) {
  draw(content);
  if (!content.live) return;
  let seen = content.version;
  const look = async () => {
    try {
      const answer = await fetch(`state?seen=${seen}`, { cache: "no-store" });
      if (answer.status === 200) {
        const next = await answer.json();
        seen = next.version;
        const at = window.scrollY;
        draw(next);
        window.scrollTo(0, at);
        if (!next.live) return;
      }
      missed = 0;
    } catch {
      missed += 1;
      document.getElementById("live").textContent = "The run's process does not answer; this is what it said last.";
      if (missed > 10) return;
    }
    setTimeout(look, 1000);
  };
  setTimeout(look, 1000);
}

follow(JSON.parse(document.getElementById("content").textContent));
new ResizeObserver(() => {
  const now = document.documentElement.clientWidth;
  if (now !== width) for (const each of figures) each.draw();
  width = now;
}).observe(document.documentElement);
window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((details) => { details.open = true; }));
