// Lines over the last two minutes, drawn in SVG. Knows nothing of what they mean.

import { drawing, element, setText } from "./dom.js";
import { duration } from "./format.js";

export const WINDOW_S = 120;
// When nobody looked for longer, nothing is known.
const GAP_S = 5;

const HEIGHT = 132;
const LEFT = 44;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 20;
const TONES = 6;

// `format` is for values; `top` is the top of the scale where it does not follow the values; `stacked` areas stand on one
// another; `empty` is said while there are no series.
export class Chart {
  #title;
  #format;
  #top;
  #stacked;
  #empty;
  #svg;
  #legend;
  #when;
  #lines = new Map();
  #labels;
  #ends;
  #grid;
  #cursor;
  #width = 400;
  // What was drawn last, and where the pointer is in it, in pixels; null: nowhere.
  #data = { times: [], series: [] };
  #pointer = null;

  constructor(root, { title, format, top = null, stacked = false, empty = "nothing" }) {
    this.#title = title;
    this.#format = format;
    this.#top = top;
    this.#stacked = stacked;
    this.#empty = empty;
    this.#when = element("span", { class: "when" });
    this.#svg = drawing("svg", { role: "img", height: HEIGHT });
    this.#grid = drawing("path", { class: "grid" });
    this.#cursor = drawing("path", { class: "cursor" });
    this.#labels = [0, 1, 2].map(() => drawing("text", { class: "scale", "text-anchor": "end" }));
    this.#ends = [
      drawing("text", { class: "scale", x: LEFT }, `${duration(WINDOW_S)} ago`),
      drawing("text", { class: "scale", "text-anchor": "end" }, "now"),
    ];
    this.#svg.append(this.#grid, ...this.#labels, ...this.#ends, this.#cursor);
    this.#legend = element("ul", { class: "legend" });
    root.append(
      element("figcaption", {}, element("span", {}, title), this.#when),
      element("div", { class: "canvas" }, this.#svg),
      this.#legend,
    );
    new ResizeObserver(([entry]) => {
      this.#width = entry.contentRect.width;
      this.#draw();
    }).observe(this.#svg.parentElement);
    this.#svg.addEventListener("pointermove", (event) => this.#point(event.offsetX));
    this.#svg.addEventListener("pointerleave", () => this.#point(null));
  }

  // `times` in seconds, ascending; of each of `series` {name, values, note?, tone?} a value a time, null where there is none.
  show(times, series) {
    this.#data = { times, series };
    this.#draw();
  }

  #point(x) {
    this.#pointer = x;
    this.#draw();
  }

  #draw() {
    const { times, series } = this.#data;
    if (!times.length || this.#width < LEFT + RIGHT) {
      return;
    }
    const at = this.#pointer === null ? times.length - 1 : this.#nearest(this.#pointer);
    const heights = this.#stacked ? stack(series) : series.map((each) => each.values);
    const top = this.#top ?? niceTop(Math.max(0, ...heights.flat().filter((value) => value !== null)));
    this.#drawScale(top);
    this.#drawLines(series, heights, top);
    this.#drawLegend(series, at);
    const x = this.#x(times[at]);
    this.#cursor.setAttribute("d", this.#pointer === null ? "" : `M${x} ${TOP}V${HEIGHT - BOTTOM}`);
    setText(this.#when, this.#pointer === null ? "" : `${duration(times.at(-1) - times[at])} ago`);
  }

  #drawScale(top) {
    this.#svg.setAttribute("viewBox", `0 0 ${this.#width} ${HEIGHT}`);
    const values = [0, top / 2, top];
    this.#grid.setAttribute(
      "d",
      values.map((value) => `M${LEFT} ${this.#y(value, top)}H${this.#width - RIGHT}`).join(""),
    );
    this.#ends.forEach((end) => end.setAttribute("y", HEIGHT - 4));
    this.#ends[1].setAttribute("x", this.#width - RIGHT);
    values.forEach((value, index) => {
      const label = this.#labels[index];
      label.setAttribute("x", LEFT - 8);
      label.setAttribute("y", this.#y(value, top) + 4);
      setText(label, this.#format(value));
    });
  }

  #drawLines(series, heights, top) {
    const gone = new Set(this.#lines.keys());
    series.forEach(({ name, tone, values }, index) => {
      gone.delete(name);
      const line = this.#lines.get(name) ?? this.#addLine(name);
      const stretches = this.#stretches(values);
      line.stroke.setAttribute("d", this.#path(stretches, heights[index], top));
      const below = heights[index - 1] ?? [];
      line.area.setAttribute("d", this.#stacked ? this.#area(stretches, heights[index], below, top) : "");
      for (const part of [line.stroke, line.area, line.entry]) {
        part.dataset.tone = (tone ?? index) % TONES;
      }
    });
    for (const name of gone) {
      const line = this.#lines.get(name);
      [line.stroke, line.area, line.entry].forEach((part) => part.remove());
      this.#lines.delete(name);
    }
  }

  #addLine(name) {
    const entry = element(
      "li",
      {},
      drawing("svg", { class: "swatch", "aria-hidden": "true" }, drawing("path", { class: "line", d: "M0 4H18" })),
      element("span", { class: "name" }, name),
      element("span", { class: "value" }),
    );
    const line = { stroke: drawing("path", { class: "line" }), area: drawing("path", { class: "area" }), entry };
    this.#svg.insertBefore(line.area, this.#grid);
    this.#svg.insertBefore(line.stroke, this.#cursor);
    this.#legend.append(entry);
    this.#lines.set(name, line);
    return line;
  }

  #drawLegend(series, at) {
    const told = series.map(({ name, values, note }) => {
      const text = this.#format(values[at]) + (note ? ` ${note}` : "");
      setText(this.#lines.get(name).entry.querySelector(".value"), text);
      return `${name} ${text}`;
    });
    this.#legend.dataset.empty = series.length ? "" : this.#empty;
    this.#svg.setAttribute("aria-label", `${this.#title}: ${told.join(", ") || this.#empty}`);
  }

  #path(stretches, heights, top) {
    return stretches.map((indices) => `M${this.#points(indices, heights, top)}`).join("");
  }

  #area(stretches, heights, below, top) {
    return stretches
      .map((indices) => {
        const under = [...indices].reverse();
        return `M${this.#points(indices, heights, top)}L${this.#points(under, below, top)}Z`;
      })
      .join("");
  }

  // Where there are values one after the other: what is not known is not drawn.
  #stretches(values) {
    const { times } = this.#data;
    const stretches = [];
    values.forEach((value, index) => {
      if (value === null) {
        return;
      }
      if (!index || values[index - 1] === null || times[index] - times[index - 1] > GAP_S) {
        stretches.push([]);
      }
      stretches.at(-1).push(index);
    });
    return stretches;
  }

  #points(indices, heights, top) {
    return indices.map((index) => this.#at(index, heights[index] ?? 0, top)).join("L");
  }

  #at(index, value, top) {
    return `${this.#x(this.#data.times[index]).toFixed(1)} ${this.#y(value, top).toFixed(1)}`;
  }

  #x(time) {
    const part = 1 - (this.#data.times.at(-1) - time) / WINDOW_S;
    return LEFT + part * (this.#width - LEFT - RIGHT);
  }

  #y(value, top) {
    return HEIGHT - BOTTOM - (Math.min(value, top) / top) * (HEIGHT - TOP - BOTTOM);
  }

  #nearest(x) {
    const distances = this.#data.times.map((time) => Math.abs(this.#x(time) - x));
    return distances.indexOf(Math.min(...distances));
  }
}

// Each series on top of those before it.
function stack(series) {
  const heights = [];
  for (const { values } of series) {
    const below = heights.at(-1);
    heights.push(values.map((value, index) => (value ?? 0) + (below?.[index] ?? 0)));
  }
  return heights;
}

// The next of 2, 4, 6, 8, 10, 20, ...: the scale does not follow each little change, and half of it is whole.
function niceTop(value) {
  if (value <= 2) {
    return 2;
  }
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 4, 6, 8, 10].find((each) => value <= each * power * (1 + 1e-9));
}
