// Tables that sort, and the rows of kernels.
function sortableTable(table, columns, rows, {sortBy, detail, key, first = 400} = {}) {
  const head = element("tr"), body = element("tbody");
  let current = null, descending = true, shown = first;
  columns.forEach((column, number) => {
    head.append(element("th", {class: column.number ? "number" : "", title: column.title ?? "", tabindex: 0,
      onclick: () => sort(number), onkeydown: (event) => { if (event.key === "Enter") sort(number); }}, column.label));
  });
  const more = element("button", {onclick: () => { shown = Infinity; fill(); }});
  function fill() {
    body.replaceChildren();
    for (const row of rows.slice(0, shown)) {
      const line = element("tr", key ? {"data-key": key(row)} : {});
      for (const column of columns) {
        const cell = element("td", {class: [column.number ? "number" : "", column.class ?? ""].join(" ").trim()}, column.text(row));
        if (column.part) { cell.classList.add("bar"); cell.style.setProperty("--part", `${100 * column.part(row)}%`); }
        if (column.tip) withTip(cell, column.tip(row));
        line.append(cell);
      }
      if (detail) line.addEventListener("click", () => toggle(line, row));
      body.append(line);
    }
    more.hidden = rows.length <= shown;
    more.textContent = `show all ${rows.length}`;
  }
  function toggle(line, row) {
    if (line.nextSibling?.classList?.contains("detail")) { line.nextSibling.remove(); return; }
    line.after(element("tr", {class: "detail"}, element("td", {colspan: columns.length}, detail(row))));
  }
  function sort(number, down) {
    const value = columns[number].value ?? columns[number].text;
    descending = down ?? (number === current ? !descending : Boolean(columns[number].number));
    current = number;
    const sign = descending ? -1 : 1;
    rows.sort((a, b) => {
      const [left, right] = [value(a), value(b)];
      if (left === right) return 0;
      if (left === null || left === undefined) return 1;
      if (right === null || right === undefined) return -1;
      return (left < right ? -1 : 1) * sign;
    });
    [...head.children].forEach((cell, index) => {
      if (index === number) cell.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
    fill();
  }
  table.append(element("thead", {}, head), body);
  table.after(more);
  if (sortBy === undefined) fill(); else sort(sortBy, true);
}

function kernelColumns(data) {
  const most = Math.max(...data.kernels.map((k) => k.headroom_us ?? 0), 1e-9);
  const number = (label, field, text, extra = {}) => ({label, number: true, value: (k) => k[field], text: (k) => text(k[field]), ...extra});
  const columns = [
    {label: "#", number: true, value: (k) => k.index, text: (k) => String(k.index)},
    {label: "source nodes", class: "nodes", text: (k) => k.nodes.join(" + "), tip: kernelText},
  ];
  if (data.end_to_end_us !== null) columns.push(
    number("could save", "headroom_us", (v) => v === null ? "" : usText(v), {part: (k) => (k.headroom_us ?? 0) / most}),
    number("time", "time_us", (v) => v === null ? "" : usText(v)),
    number("of a run", "share", percent),
    number("of its roof", "roof_fraction", percent));
  columns.push(
    number("floor", "floor_us", (v) => v === null ? "" : usText(v)),
    {label: "limit", text: (k) => k.limit},
    number("bytes", "num_bytes", byteText),
    number("operations", "flops", flopText),
    {label: "type", text: (k) => k.dtype});
  if (data.is_built) columns.push({label: "tactic", class: "tactic", text: (k) => k.tactic, tip: (k) => k.schedule || k.tactic});
  return columns;
}

function kernelDetail(k) {
  const lines = [];
  if (k.advice) lines.push(k.advice);
  lines.push(`nodes: ${k.nodes.map((node, n) => k.operators[n] ? `${node} (${k.operators[n]})` : node).join(", ")}`);
  lines.push(`types: ${k.types}; layout of the result: ${k.layout}`);
  lines.push(`bytes: ${k.bytes_formula} (weights ${byteText(k.weight_bytes)}); operations: ${k.flops_formula}`);
  const limits = Object.entries(k.limits_us).map(([name, us]) => `${name} ${usText(us)}`);
  if (limits.length) lines.push(`each resource alone: ${limits.join(", ")}`);
  if (k.schedule) lines.push(`schedule: ${k.schedule}`);
  for (const [tactic, reason] of k.refused) lines.push(`  not ${tactic}: ${reason}`);
  for (const [tactic, us] of k.alternatives) lines.push(`  tried ${tactic}: ${usText(us)}`);
  return lines.join("\n");
}
