// Everything below the kernels: maps, fusion, memory, nodes, decisions.
function section(title, note, ...content) {
  return element("details", {}, element("summary", {}, title, element("span", {}, ` ${note}`)), ...content);
}

function scrolled(table) { return element("div", {class: "scroll"}, table); }

function mapOf(data, title, value) {
  const colours = palette(data.kernels.map(value));
  const strip = element("div", {class: "strip thin"});
  for (const k of data.kernels) {
    const cell = element("div", {style: `flex:1;background:${colours.get(value(k))}`});
    strip.append(withTip(cell, `#${k.index} ${k.nodes.at(-1) ?? k.name}: ${value(k) || "none"}`));
  }
  const counts = new Map();
  for (const k of data.kernels) counts.set(value(k), (counts.get(value(k)) ?? 0) + 1);
  return element("div", {}, element("p", {class: "hint"}, title), strip, legend(colours, (name) => ` (${counts.get(name)})`));
}

function memoryPicture(data) {
  const {buffers} = data.memory;
  const svg = document.createElementNS(SVG, "svg");
  const size = {width: 1200, height: 300, left: 70, bottom: 275};
  svg.setAttribute("viewBox", `0 0 ${size.width} ${size.height}`);
  const last = Math.max(...buffers.map((b) => b.last)) + 1, top = Math.max(...buffers.map((b) => b.offset_bytes + b.num_bytes), 1);
  const x = (kernel) => size.left + (size.width - size.left - 10) * kernel / last;
  const y = (offset) => size.bottom - (size.bottom - 10) * offset / top;
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    shape(svg, "line", {x1: size.left, x2: size.width - 10, y1: y(top * part), y2: y(top * part), class: "grid"});
    shape(svg, "text", {x: size.left - 5, y: y(top * part) + 4, "text-anchor": "end"}, byteText(top * part));
  }
  buffers.forEach((b, number) => {
    const box = shape(svg, "rect", {x: x(b.first), width: Math.max(1, x(b.last + 1) - x(b.first) - 0.5), y: y(b.offset_bytes + b.num_bytes),
      height: Math.max(0.8, y(b.offset_bytes) - y(b.offset_bytes + b.num_bytes)), fill: COLOURS[number % COLOURS.length], "fill-opacity": 0.6, stroke: "#fff", "stroke-width": 0.4});
    withTip(box, `${b.name}\n${byteText(b.num_bytes)} at ${b.offset_bytes}\nfrom kernel #${b.first} to #${b.last}`);
  });
  shape(svg, "text", {x: (size.left + size.width) / 2, y: size.height - 6, "text-anchor": "middle"}, "kernel");
  return svg;
}

function fusionTable(data) {
  const table = element("table");
  const columns = [
    {label: "would save", number: true, value: (i) => i.price_us, text: (i) => i.price_us === null ? "?" : usText(i.price_us)},
    {label: "from", number: true, value: (i) => i.producer, text: (i) => `#${i.producer}`},
    {label: "to", number: true, value: (i) => i.consumer, text: (i) => `#${i.consumer}`},
    {label: "bytes", number: true, value: (i) => i.num_bytes, text: (i) => byteText(i.num_bytes)},
    {label: "why not one kernel", text: (i) => i.reason},
    {label: "value", class: "nodes", text: (i) => i.value},
  ];
  const box = scrolled(table);
  sortableTable(table, columns, [...data.intermediates], {sortBy: 0});
  return box;
}

function listTable(columns, rows) {
  const table = element("table"), box = scrolled(table);
  const search = element("input", {type: "search", placeholder: "filter"});
  const wrap = element("div", {}, search, box);
  search.addEventListener("input", () => {
    const wanted = search.value.toLowerCase();
    for (const row of table.tBodies[0].rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
  sortableTable(table, columns, rows, {first: 2000});
  return wrap;
}

function addSections(root, data) {
  const plain = (label, field) => ({label, text: (row) => String(row[field] ?? "")});
  const price = data.intermediates.reduce((total, i) => total + (i.price_us ?? 0), 0);
  root.append(section("Fusion", `${counted(data.fused.length, "kernel")} of several nodes, ${data.fused.reduce((n, [, count]) => n + count, 0)} in all; `
    + `through memory: ${counted(data.intermediates.length, "value")}${price ? `, at least ${usText(price)}` : ""}`, fusionTable(data)));
  const maps = [mapOf(data, "type that bounds each kernel, in order", (k) => k.dtype), mapOf(data, "types of inputs and results", (k) => k.types),
    mapOf(data, "layout of results", (k) => k.layout)];
  if (data.is_built) maps.push(mapOf(data, "tactic", (k) => k.tactic));
  root.append(section("Precision, layouts and tactics", "in the order of the kernels", ...maps));
  const memory = data.memory;
  root.append(section("Memory", `weights ${byteText(memory.weight_bytes)}, arena ${byteText(memory.arena_bytes)}; at least ${memory.live_bytes_formula} bytes live at once`,
    ...(memory.buffers.length ? [memoryPicture(data)] : [])));
  const places = new Map();
  for (const p of data.placements) places.set(p.place, (places.get(p.place) ?? 0) + 1);
  root.append(section("Nodes of the model", [...places].map(([place, count]) => `${count} ${place}`).join(", "),
    listTable([plain("node", "node"), plain("operator", "op_type"), plain("place", "place"), plain("by", "by"), plain("detail", "detail")], [...data.placements])));
  if (data.host.length) root.append(section("Steps between kernels", `${data.host.length}`, listTable([
    plain("step", "kind"), plain("name", "name"), plain("node", "node"), plain("why", "reason"),
    {label: "time", number: true, value: (s) => s.time_us, text: (s) => s.time_us === null ? "" : usText(s.time_us)}], [...data.host])));
  const notes = [["specialised", data.specialised], ["approximated", data.approximated], ["note", data.warnings],
    ["interpreted", data.interpreted.map(([node, op, why]) => `${node} (${op}): ${why}`)]].flatMap(([kind, texts]) => texts.map((text) => ({kind, text})));
  root.append(section("Interpreted, specialised, approximated", counted(notes.length, "note"), listTable([plain("", "kind"), plain("", "text")], notes)));
  if (data.devices.length) root.append(section("On other devices", "the least time of the same kernels", listTable([
    {label: "floor", number: true, value: (d) => d.floor_us, text: (d) => usText(d.floor_us)}, plain("device", "device"), plain("mostly limited by", "limit"), plain("source", "source")],
    [...data.devices])));
  root.append(section("Decisions", `${data.decisions.length}, in order`, listTable([plain("stage", "stage"), plain("subject", "subject"), plain("chosen", "chosen"),
    {label: "rejected", text: (d) => d.rejected.map(([option, reason]) => `${option}: ${reason}`).join("; ")}], [...data.decisions])));
}
