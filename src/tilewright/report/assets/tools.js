// Numbers as text, elements, scales, the tip that follows the pointer.
const SVG = "http://www.w3.org/2000/svg";
const COLOURS = ["#e8590c", "#1971c2", "#2f9e44", "#9c36b5", "#c2255c", "#0c8599", "#846358", "#5c677d"];

function scaled(value, units, digits = 3) {
  if (value === null || value === undefined) return "?";
  for (const [size, unit] of units) if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(digits))} ${unit}`;
  const [size, unit] = units[units.length - 1];
  return `${Number((value / size).toPrecision(digits))} ${unit}`;
}
// Milliseconds whatever they are, as in the text of a terminal, so that times can be compared.
function usText(us) {
  if (us === null || us === undefined) return "?";
  const ms = us / 1e3;
  return `${ms.toFixed(ms >= 100 ? 1 : ms >= 0.001 || ms === 0 ? 3 : 5)} ms`;
}
const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
const byteText = (n) => scaled(n, [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]]);
const flopText = (n) => scaled(n, [[1e12, "TFLOP"], [1e9, "GFLOP"], [1e6, "MFLOP"], [1e3, "kFLOP"], [1, "FLOP"]]);
const percent = (part) => part === null || part === undefined ? "?" : `${(100 * part).toFixed(part < 0.1 ? 1 : 0)} %`;

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "class") made.className = value;
    else if (key === "style") made.style.cssText = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function shape(parent, name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

function logScale(low, high, from, to) {
  const span = Math.log(high / low);
  return (value) => from + (to - from) * Math.log(value / low) / span;
}

// Powers of ten inside a range.
function decades(low, high) {
  const result = [];
  for (let power = Math.ceil(Math.log10(low) - 1e-9); power <= Math.log10(high) + 1e-9; power++) result.push(10 ** power);
  return result;
}

const tip = document.getElementById("tip");
function showTip(event, text) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = event.clientX + 14 + box.width > innerWidth ? event.clientX - box.width - 14 : event.clientX + 14;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - box.height - 8))}px`;
}
function withTip(target, text) {
  target.addEventListener("pointermove", (event) => showTip(event, text));
  target.addEventListener("pointerleave", () => { tip.hidden = true; });
  return target;
}

// How far from its roof: what a glance should find. Without times, what will limit it.
const NEARNESS = [["below 25 % of the roof", 0.25, "#e03131"], ["25 to 50 %", 0.5, "#f08c00"], ["50 to 80 %", 0.8, "#94b816"], ["above 80 %", Infinity, "#2b8a3e"]];
function classes(data) {
  if (data.end_to_end_us === null) {
    const colours = palette(data.kernels.map((k) => k.limit));
    return {nameOf: (k) => k.limit, colours};
  }
  const colours = new Map(NEARNESS.map(([name, , colour]) => [name, colour]));
  colours.set("no roof known", "#868e96");
  return {nameOf: (k) => k.roof_fraction === null ? "no roof known" : NEARNESS.find(([, most]) => k.roof_fraction < most)[0], colours};
}

function palette(names) {
  const colours = new Map();
  for (const name of names) if (!colours.has(name)) colours.set(name, COLOURS[colours.size % COLOURS.length]);
  return colours;
}
function legend(colours, suffix = () => "") {
  const made = element("div", {class: "legend"});
  for (const [name, colour] of colours) made.append(element("span", {}, element("i", {style: `background:${colour}`}), `${name || "none"}${suffix(name)}`));
  return made;
}
