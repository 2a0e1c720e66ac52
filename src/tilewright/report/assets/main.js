// Puts the page together from the JSON in it.
const COMPULSORY = "Bytes that every implementation of these kernels has to move: each element that a kernel can reach, once, "
  + "in the type that it is stored in. What a kernel reads again because the caches lost it comes on top.";

function numbers(data) {
  const total = (field) => data.kernels.reduce((sum, k) => sum + (k[field] ?? 0) * k.calls, 0);
  const result = [];
  if (data.end_to_end_us !== null) result.push([usText(data.end_to_end_us), "a run"]);
  if (data.floor_us !== null) result.push([usText(data.floor_us), "at least, by the roofs"]);
  if (data.roof_fraction !== null) result.push([percent(data.roof_fraction), "of the roof"]);
  result.push([String(data.kernels.length), data.kernels.length === 1 ? "kernel" : "kernels"], [flopText(total("flops")), "operations"],
    [byteText(total("num_bytes")), "compulsory traffic", COMPULSORY]);
  return result;
}

function facts(data) {
  const {device, target, cpu, precision, threads} = data.facts;
  const parts = [device ?? cpu ?? target, precision, threads && `${threads} thread${threads > 1 ? "s" : ""}`].filter(Boolean);
  const sizes = data.dims.filter((name) => name in data.sizes).map((name) => `${name}=${data.sizes[name]}`);
  if (sizes.length) parts.push(sizes.join(" ") + (data.assumed.length ? " (assumed)" : ""));
  if (data.roofs) parts.push(`roofs of ${data.roofs.device}, ${data.roofs.source}`);
  return parts.join(" · ");
}

// One bar of all that a run spends time on.
function timeBar(data, {nameOf, colours}, choose) {
  const root = document.getElementById("share");
  const isTimed = data.end_to_end_us !== null, field = isTimed ? "time_us" : "floor_us";
  const whole = isTimed ? data.end_to_end_us : data.floor_us;
  if (!whole) return;
  const strip = element("div", {class: "strip"});
  const add = (us, label, colour, text, index) => {
    if (!us) return;
    const cell = withTip(element("div", {style: `flex:${us};background:${colour}`}, label), text);
    if (index !== undefined) cell.addEventListener("click", () => choose(index));
    strip.append(cell);
  };
  for (const k of data.kernels) add(k[field], (k[field] ?? 0) > 0.036 * whole ? `#${k.index}` : "", colours.get(nameOf(k)), kernelText(k), k.index);
  add(data.host_us, "host", "#343a40", `steps between kernels: ${usText(data.host_us)}`);
  add(data.runtime_us, data.runtime_us > 0.03 * whole ? "runtime" : "", "#adb5bd", `checking inputs, allocating results: ${usText(data.runtime_us)}`);
  const times = new Map();
  for (const k of data.kernels) times.set(nameOf(k), (times.get(nameOf(k)) ?? 0) + (k[field] ?? 0));
  const shown = new Map([...colours].filter(([name]) => times.has(name)));
  root.append(element("p", {class: "hint"}, isTimed ? "Where the time goes, in the order of a run; colours say how close to its roof a kernel is:"
    : "The least time of each kernel, in the order of a run; colours say what limits it:"), strip,
    legend(shown, (name) => ` ${usText(times.get(name))}`));
}

// What the picture shows; without times every kernel lies on its roof.
function caption(data) {
  const text = document.getElementById("caption");
  if (!data.roofs || !data.kernels.some((k) => k.floor_us !== null || k.time_us !== null)) {
    text.textContent = "There is no picture: neither roofs nor times are known. tilewright device --probe measures the roofs.";
    document.getElementById("roofline").remove();
  } else if (data.end_to_end_us === null) {
    text.textContent = "Nothing was timed: a circle is a kernel at the best that the roofs allow, its area the least time. "
      + "All lie on a roof by construction; the bar below compares their least times.";
  }
}

function start() {
  const data = JSON.parse(document.getElementById("data").textContent);
  document.getElementById("title").textContent = data.title + (data.is_built ? "" : ": an estimate, nothing was built");
  document.getElementById("facts").textContent = facts(data);
  for (const [value, label, note] of numbers(data)) {
    const cell = element("div", note ? {class: "noted", tabindex: 0} : {}, element("b", {}, value), element("span", {}, label));
    document.getElementById("numbers").append(note ? withTip(cell, note) : cell);
  }
  caption(data);
  const kinds = classes(data);

  function choose(index) {
    for (const old of document.querySelectorAll(".chosen")) old.classList.remove("chosen");
    document.querySelector(`circle[data-kernel="${index}"]`)?.classList.add("chosen");
    const row = document.querySelector(`#kernels tr[data-key="${index}"]`);
    row?.classList.add("chosen");
    row?.scrollIntoView({block: "nearest"});
  }
  const plot = document.getElementById("roofline");
  if (plot) drawRoofline(plot, data, (k) => kinds.colours.get(kinds.nameOf(k)), choose);
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
