// The roofline: roofs as lines, kernels as circles.
function kernelText(k) {
  const lines = [
    `#${k.index} ${k.name}: ${k.nodes.join(" + ")}`,
    `${byteText(k.num_bytes)}, ${flopText(k.flops)}` + (k.intensity ? `, ${Number(k.intensity.toPrecision(3))} FLOP a byte` : ""),
    `${k.dtype}${k.tactic ? `, ${k.tactic}` : ""}`,
  ];
  if (k.time_us !== null) lines.push(`time ${usText(k.time_us)}` + (k.calls > 1 ? ` in ${k.calls} calls` : "") + `, at best ${usText(k.best_us)}`);
  if (k.floor_us !== null) lines.push(`limit ${k.limit}: at least ${usText(k.floor_us)}`);
  if (k.headroom_us !== null) lines.push(`headroom ${usText(k.headroom_us)}, at ${percent(k.roof_fraction)} of the roof`);
  return lines.join("\n");
}

// Where a kernel stands: operations a second, or bytes a second for those that only move data.
function placed(k) {
  const us = k.best_us ?? k.floor_us;
  if (!us || !k.num_bytes) return null;
  const total = k.flops * k.calls;
  const rate = (total || k.num_bytes * k.calls) / us / 1e3; // G a second
  const roof = k.floor_us ? (total || k.num_bytes * k.calls) / k.floor_us / 1e3 : null;
  return {k, us, rate, roof, moves: !total, intensity: k.intensity};
}

function drawRoofline(svg, data, colourOf, choose) {
  const points = data.kernels.map(placed).filter((p) => p !== null);
  const working = points.filter((p) => !p.moves);
  const strip = {left: 46, right: working.length < points.length ? 106 : 46};
  const area = {left: strip.right + (strip.right > strip.left ? 8 : 0), right: 790, top: 8, bottom: 362};
  const used = new Set(working.map((p) => p.k.dtype));
  const peaks = data.roofs ? Object.entries(data.roofs.peaks_flops).filter(([name]) => used.has(name)) : [];
  const levels = data.roofs ? data.roofs.levels : [];
  const xs = working.map((p) => p.intensity).concat([0.5, 16]);
  const ys = points.flatMap((p) => [p.rate, p.roof ?? p.rate]).concat(peaks.map(([, peak]) => peak / 1e9));
  if (!points.length) return;
  const low = {x: Math.min(...xs) / 1.8, y: Math.min(...ys) / 1.8}, high = {x: Math.max(...xs) * 1.8, y: Math.max(...ys) * 1.8};
  const x = logScale(low.x, high.x, area.left, area.right), y = logScale(low.y, high.y, area.bottom, area.top);

  for (const value of decades(low.x, high.x)) {
    shape(svg, "line", {x1: x(value), x2: x(value), y1: area.top, y2: area.bottom, class: "grid"});
    shape(svg, "text", {x: x(value), y: area.bottom + 15, "text-anchor": "middle"}, String(value));
  }
  for (const value of [...decades(low.y / 10, high.y)].flatMap((power) => [2 * power, 5 * power])) {
    if (value > low.y && value < high.y) shape(svg, "line", {x1: strip.left, x2: area.right, y1: y(value), y2: y(value), class: "grid fine"});
  }
  for (const value of decades(low.y, high.y)) {
    shape(svg, "line", {x1: strip.left, x2: area.right, y1: y(value), y2: y(value), class: "grid"});
    shape(svg, "text", {x: strip.left - 5, y: y(value) + 4, "text-anchor": "end"}, String(value));
  }
  shape(svg, "path", {d: `M${area.left} ${area.top}V${area.bottom}H${area.right}`, class: "axis", fill: "none"});
  shape(svg, "text", {x: (area.left + area.right) / 2, y: area.bottom + 32, "text-anchor": "middle"}, "operations a byte of compulsory traffic");
  shape(svg, "text", {x: 12, y: (area.top + area.bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(area.top + area.bottom) / 2})`}, "billion operations a second");
  if (points.length > working.length) {
    shape(svg, "text", {x: (strip.left + strip.right) / 2, y: area.bottom + 15, "text-anchor": "middle"}, "only moves");
    shape(svg, "text", {x: (strip.left + strip.right) / 2, y: area.bottom + 28, "text-anchor": "middle"}, "data: GB/s");
  }

  const top = Math.max(...peaks.map(([, peak]) => peak / 1e9), 0);
  const clip = (value) => Math.min(Math.max(value, low.x), high.x);
  levels.forEach((level, number) => {
    const rate = level.bytes_per_s / 1e9;
    const from = clip(low.y / rate), to = top ? clip(top / rate) : high.x;
    if (from >= to) return;
    const line = shape(svg, "line", {x1: x(from), y1: y(from * rate), x2: x(to), y2: y(to * rate), class: "roof", stroke: "#868e96"});
    withTip(line, `${level.name}: ${Math.round(rate)} GB/s`);
    // Labels along the lines, each a little lower than the one before, so that they do not meet.
    const at = Math.exp(Math.log(from) + (Math.log(to) - Math.log(from)) * (0.93 - 0.2 * number));
    const slope = Math.atan2(y(at * rate * 2) - y(at * rate), x(at * 2) - x(at)) * 180 / Math.PI;
    shape(svg, "text", {x: x(at), y: y(at * rate) - 5, class: "roof-label", "text-anchor": "end",
      transform: `rotate(${slope} ${x(at)} ${y(at * rate)})`}, `${level.name} ${Math.round(rate)} GB/s`);
  });
  for (const [name, peak] of peaks) {
    const rate = peak / 1e9, start = clip(rate / Math.max(...levels.map((l) => l.bytes_per_s / 1e9), 1e-9));
    shape(svg, "line", {x1: x(start), x2: area.right, y1: y(rate), y2: y(rate), class: "roof", stroke: "#495057"});
    shape(svg, "text", {x: area.right, y: y(rate) - (data.end_to_end_us === null ? 22 : 5), class: "roof-label", "text-anchor": "end"}, `${name} peak ${Math.round(rate)} G/s`);
  }
  const labels = [...svg.querySelectorAll(".roof-label")];
  drawKernels(svg, points, {x, y, strip}, colourOf, choose);
  svg.append(...labels); // above the circles
  labelKernels(svg, points, labels);
}

// Numbers beside the kernels that matter most; each moves around its circle until it meets no other label.
function labelKernels(svg, points, others) {
  const taken = others.map((label) => label.getBoundingClientRect());
  const meets = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  const saving = [...points].sort((a, b) => (b.k.headroom_us ?? b.us) - (a.k.headroom_us ?? a.us)).slice(0, 6);
  for (const p of saving) {
    const [cx, cy, radius] = p.centre, away = radius + 8;
    const label = shape(svg, "text", {class: "dot-label"}, `#${p.k.index}`);
    const places = [[0, 4], [0, -away + 4], [away + 8, 4], [-away - 8, 4], [0, away + 8], [away + 4, -away], [-away - 4, -away], [away + 4, away + 4], [-away - 4, away + 4]];
    const free = places.some(([dx, dy]) => {
      label.setAttribute("x", cx + dx);
      label.setAttribute("y", cy + dy);
      const box = label.getBoundingClientRect();
      if (taken.some((other) => meets(box, other))) return false;
      taken.push(box);
      return true;
    });
    if (!free) label.remove();
  }
}

function drawKernels(svg, points, {x, y, strip}, colourOf, choose) {
  const longest = Math.max(...points.map((p) => p.us));
  const gap = shape(svg, "line", {class: "gap", visibility: "hidden"});
  const order = [...points].sort((a, b) => b.us - a.us);
  const wide = strip.right - strip.left - 16;
  for (const p of order) {
    const at = p.moves ? strip.left + 8 + (p.k.index * 37 % Math.max(wide, 1)) : x(p.intensity);
    const radius = Math.max(3, 17 * Math.sqrt(p.us / longest));
    const colour = colourOf(p.k);
    const dot = shape(svg, "circle", {cx: at, cy: y(p.rate), r: radius, fill: colour, stroke: colour, class: "dot", "data-kernel": p.k.index, tabindex: 0});
    withTip(dot, kernelText(p.k));
    dot.addEventListener("pointerenter", () => {
      if (!p.roof) return;
      for (const [name, value] of Object.entries({x1: at, x2: at, y1: y(p.rate), y2: y(p.roof), visibility: "visible"})) gap.setAttribute(name, value);
    });
    dot.addEventListener("pointerleave", () => gap.setAttribute("visibility", "hidden"));
    dot.addEventListener("click", () => choose(p.k.index));
    dot.addEventListener("keydown", (event) => { if (event.key === "Enter") choose(p.k.index); });
    p.centre = [at, y(p.rate), radius];
  }
  svg.append(gap);
}
