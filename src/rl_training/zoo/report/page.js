"use strict";
// The page is complete without this script: it adds hover values and switches for the groups.
for (const section of document.querySelectorAll(".environment")) {
  const hidden = new Set();
  for (const button of section.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => {
      const off = button.getAttribute("aria-pressed") === "true";
      button.setAttribute("aria-pressed", String(!off));
      hidden[off ? "add" : "delete"](button.dataset.s);
      for (const group of section.querySelectorAll(`.chart g[data-s="${button.dataset.s}"]`)) {
        group.classList.toggle("off", off);
      }
    });
  }
  for (const chart of section.querySelectorAll(".chart")) watch(section, chart, hidden);
}

function watch(section, chart, hidden) {
  const area = chart.querySelector(".area");
  const cursor = chart.querySelector(".cursor");
  const readout = chart.querySelector(".readout");
  const series = JSON.parse(document.getElementById(chart.dataset.chart).textContent);
  const [low, high] = area.dataset.x.split(",").map(Number);
  const steps = [...new Set(series.flatMap((one) => one.x))].sort((a, b) => a - b);
  if (!steps.length) return;
  let at = steps.length - 1;

  const show = (index) => {
    at = Math.max(0, Math.min(steps.length - 1, index));
    const step = steps[at];
    const share = (step - low) / (high - low);
    const rows = [element("b", `step ${step.toLocaleString("en")}`)];
    for (const one of series) {
      if (hidden.has(String(one.s)) || step < one.x[0] || step > one.x[one.x.length - 1]) continue;
      const near = nearest(one.x, step);
      const row = element("div");
      const swatch = section.querySelectorAll(".scores .swatch")[one.s];
      const interval = one.lo ? ` (${number(one.lo[near])} to ${number(one.hi[near])})` : "";
      const reference = one.ref && one.ref[near] !== null ? `, reference ${number(one.ref[near])}` : "";
      const value = element("i", number(one.y[near]) + interval + reference);
      row.append(swatch.cloneNode(true), element("span", one.label), value);
      rows.push(row);
    }
    readout.replaceChildren(...rows);
    cursor.style.left = `${100 * share}%`;
    cursor.hidden = readout.hidden = false;
    const place = share * area.clientWidth;
    const beside = share < 0.5 ? place + 12 : place - 12 - readout.offsetWidth;
    readout.style.left = `${Math.max(0, Math.min(beside, area.clientWidth - readout.offsetWidth))}px`;
  };
  const hide = () => { cursor.hidden = readout.hidden = true; };

  const point = (event) => {
    const box = area.getBoundingClientRect();
    show(nearest(steps, low + ((event.clientX - box.left) / box.width) * (high - low)));
  };
  area.addEventListener("pointermove", point);
  area.addEventListener("pointerdown", point);
  area.addEventListener("pointerleave", hide);
  area.addEventListener("blur", hide);
  area.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -steps.length, End: steps.length }[event.key];
    if (event.key === "Escape") hide();
    if (move === undefined) return;
    event.preventDefault();
    show(readout.hidden ? at : at + move);
  });
}

function nearest(sorted, value) {
  let best = 0;
  for (let index = 1; index < sorted.length; index++) {
    if (Math.abs(sorted[index] - value) <= Math.abs(sorted[best] - value)) best = index;
  }
  return best;
}

function element(name, text = "") {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

function number(value) {
  const digits = Math.abs(value) >= 10000 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  const text = value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return text.replace("-", "\u2212");
}
