// Puts the page together from the JSON in it.
function numbers(data) {
  const total = (field) => data.kernels.reduce((sum, k) => sum + (k[field] ?? 0) * k.calls, 0);
  const result = [];
  if (data.end_to_end_us !== null) result.push([usText(data.end_to_end_us), "a run"]);
  if (data.floor_us !== null) result.push([usText(data.floor_us), "at least, by the roofs"]);
  if (data.roof_fraction !== null) result.push([percent(data.roof_fraction), "of the roof"]);
  result.push([String(data.kernels.length), "kernels"], [flopText(total("flops")), "operations"], [byteText(total("num_bytes")), "compulsory traffic"]);
  return result;
}

function facts(data) {
  const {cpu, precision, threads} = data.facts;
  const parts = [cpu, precision, threads && `${threads} thread${threads > 1 ? "s" : ""}`].filter(Boolean);
  const sizes = data.dims.filter((name) => name in data.sizes).map((name) => `${name}=${data.sizes[name]}`);
  if (sizes.length) parts.push(sizes.join(" ") + (data.assumed.length ? " (assumed)" : ""));
  if (data.roofs) parts.push(`roofs of ${data.roofs.device}, ${data.roofs.source}`);
  return parts.join(" · ");
}

// One bar of all that a run spends time on.
function timeBar(data, {nameOf, colours}, choose) {
  const root = document.getElementById("share");
  if (data.end_to_end_us === null) return;
  const strip = element("div", {class: "strip"});
  const add = (us, label, colour, text, index) => {
    if (!us) return;
    const cell = withTip(element("div", {style: `flex:${us};background:${colour}`}, label), text);
    if (index !== undefined) cell.addEventListener("click", () => choose(index));
    strip.append(cell);
  };
  for (const k of data.kernels) add(k.time_us, (k.share ?? 0) > 0.036 ? `#${k.index}` : "", colours.get(nameOf(k)), kernelText(k), k.index);
  add(data.host_us, "host", "#343a40", `steps between kernels: ${usText(data.host_us)}`);
  add(data.runtime_us, data.runtime_us > 0.03 * data.end_to_end_us ? "runtime" : "", "#adb5bd", `checking inputs, allocating results: ${usText(data.runtime_us)}`);
  const times = new Map();
  for (const k of data.kernels) times.set(nameOf(k), (times.get(nameOf(k)) ?? 0) + (k.time_us ?? 0));
  const shown = new Map([...colours].filter(([name]) => times.has(name)));
  root.append(element("p", {class: "hint"}, "Where the time goes, in the order of a run; colours say how close to its roof a kernel is:"), strip,
    legend(shown, (name) => ` ${usText(times.get(name))}`));
}

function start() {
  const data = JSON.parse(document.getElementById("data").textContent);
  document.getElementById("title").textContent = data.title + (data.is_built ? "" : ": an estimate, nothing was built");
  document.getElementById("facts").textContent = facts(data);
  for (const [value, label] of numbers(data)) document.getElementById("numbers").append(element("div", {}, element("b", {}, value), label));
  const kinds = classes(data);

  function choose(index) {
    for (const old of document.querySelectorAll(".chosen")) old.classList.remove("chosen");
    document.querySelector(`circle[data-kernel="${index}"]`)?.classList.add("chosen");
    const row = document.querySelector(`#kernels tr[data-key="${index}"]`);
    row?.classList.add("chosen");
    row?.scrollIntoView({block: "nearest"});
  }
  drawRoofline(document.getElementById("roofline"), data, (k) => kinds.colours.get(kinds.nameOf(k)), choose);
  const steps = document.getElementById("steps");
  for (const step of data.next_steps.slice(0, 6)) {
    steps.append(element("li", {onclick: () => { if (step.kernels.length) choose(step.kernels[0]); }}, element("b", {}, `${usText(step.saves_us)}: `), step.text));
  }
  if (!data.next_steps.length) {
    document.getElementById("steps-title").textContent = "Notes";
    for (const text of data.warnings) steps.append(element("li", {}, text));
  }
  timeBar(data, kinds, choose);
  sortableTable(document.getElementById("kernels"), kernelColumns(data), [...data.kernels],
    {sortBy: 2, detail: kernelDetail, key: (k) => k.index});
  addSections(document.getElementById("more"), data);
}
start();
