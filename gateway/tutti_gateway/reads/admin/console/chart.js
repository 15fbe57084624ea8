// Line charts and the band of views, drawn as SVG. All plots of a page share one cursor and one time span.

import { h, setAttribute, setText, svg } from "./dom.js";
import { clock, minute } from "./format.js";

const HEIGHT = 104, LEFT = 54, RIGHT = 6, TOP = 6, BOTTOM = 18;
const CLASSES = ["a", "b", "c"];

// The time span that all plots of a page show, [from, until] in us, and the cursor (us, null for none).
export class Span {
  constructor() {
    this.from = 0;
    this.until = 1;
    this.cursor = null;
    this.plots = [];
  }

  point(us) {
    this.cursor = us;
    for (const plot of this.plots) plot.drawCursor();
  }

  move(step) {
    const at = this.cursor ?? this.until;
    this.point(Math.min(this.until, Math.max(this.from, at + (step * (this.until - this.from)) / 60)));
  }
}

class Plot {
  constructor(title, span, height, whole = false) {
    this.span = span;
    this.height = height;
    this.width = 400;
    this.caption = h("figcaption", {}, h("h3", {}, title));
    this.grid = svg("g");
    this.marks = svg("g");
    this.line = svg("line", { class: "cursor", y1: TOP, y2: height - BOTTOM, visibility: "hidden" });
    this.picture = svg("svg", { height, "aria-hidden": "true" }, this.grid, this.marks, this.line);
    this.element = h("figure", { tabindex: "0", class: whole ? "whole" : false, role: "group", "aria-label": title }, this.caption, this.picture);
    this.picture.addEventListener("pointermove", (event) => {
      const box = this.picture.getBoundingClientRect();
      const part = (event.clientX - box.left - LEFT) / (this.width - LEFT - RIGHT);
      span.point(span.from + Math.min(1, Math.max(0, part)) * (span.until - span.from));
    });
    this.picture.addEventListener("pointerleave", () => span.point(null));
    this.element.addEventListener("blur", () => span.point(null));
    this.element.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
      if (step) {
        span.move(step);
        event.preventDefault();
      } else if (event.key === "Escape") span.point(null);
    });
    this.sizes = new ResizeObserver(() => {
      const width = this.picture.clientWidth;
      if (width && width !== this.width) {
        this.width = width;
        this.draw();
      }
    });
    this.sizes.observe(this.picture);
    span.plots.push(this);
  }

  x(us) {
    const { from, until } = this.span;
    return LEFT + ((us - from) / (until - from)) * (this.width - LEFT - RIGHT);
  }

  times() {
    const { from, until } = this.span;
    const steps = [15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 14400, 21600].map((s) => s * 1e6);
    const most = Math.max(2, Math.floor((this.width - LEFT) / 70));
    const step = steps.find((one) => (until - from) / one <= most) ?? 43200e6;
    const marks = [];
    for (let at = Math.ceil(from / step) * step; at < until; at += step) {
      const x = this.x(at), words = step < 60e6 ? clock(at) : minute(at);
      if (x < LEFT + 14 || x > this.width - 3 * words.length) continue;
      marks.push(svg("text", { x, y: this.height - 4, "text-anchor": "middle" }, words));
    }
    return marks;
  }

  drawCursor() {
    const { cursor } = this.span;
    setAttribute(this.line, "visibility", cursor === null ? "hidden" : "visible");
    if (cursor !== null) {
      const x = this.x(cursor);
      setAttribute(this.line, "x1", x.toFixed(1));
      setAttribute(this.line, "x2", x.toFixed(1));
    }
  }
}

export class Lines extends Plot {
  // lines: at most three [{name, label}]; form formats a value; area fills the space below the first line.
  constructor(title, span, lines, form, { area = false } = {}) {
    super(title, span, HEIGHT);
    this.lines = lines;
    this.form = form;
    this.area = area;
    this.times_us = [];
    this.values = lines.map(() => []);
    this.keys = lines.map((line, at) => {
      const value = h("b", {}, "–");
      this.caption.append(h("span", { class: `key ${CLASSES[at]}` }, lines.length > 1 || line.label ? `${line.label} ` : "", value));
      return value;
    });
    this.fill = svg("path", { class: "area a" });
    this.paths = lines.map((_, at) => svg("path", { class: `line ${CLASSES[at]}` }));
    this.dots = lines.map((_, at) => svg("path", { class: `dot ${CLASSES[at]}` }));
    this.marks.append(...(area ? [this.fill] : []), ...[...this.paths].reverse(), ...[...this.dots].reverse());
  }

  show(times_us, columns, gap_us) {
    this.times_us = times_us;
    this.values = this.lines.map((line) => columns.get(line.name) ?? []);
    this.gap_us = gap_us;
    this.draw();
  }

  draw() {
    let top = 0;
    for (const values of this.values) {
      for (const [at, value] of values.entries()) if (value > top && this.times_us[at] >= this.span.from) top = value;
    }
    const high = top > 0 ? nice(top, this.form.base ?? 10) : 1;
    const y = (value) => this.height - BOTTOM - (value / high) * (this.height - BOTTOM - TOP);
    const levels = [0, 0.5, 1].map((part) => {
      const place = Math.round(y(high * part)) + 0.5;
      return svg("g", {}, svg("line", { class: "grid", x1: LEFT, x2: this.width - RIGHT, y1: place, y2: place }),
        svg("text", { x: LEFT - 6, y: place + 3.5, "text-anchor": "end" }, part === 0 ? "0" : top > 0 ? this.form(high * part) : ""));
    });
    this.grid.replaceChildren(...levels, ...this.times());
    const place = ([x, value]) => `${x.toFixed(1)} ${y(value).toFixed(1)}`;
    this.values.forEach((values, at) => {
      const runs = this.runs(values), lines = runs.filter((run) => run.length > 1);
      setAttribute(this.paths[at], "d", lines.map((run) => `M${run.map(place).join("L")}`).join(""));
      // A line without length has no ink, except for its round ends.
      setAttribute(this.dots[at], "d", runs.filter((run) => run.length === 1).map((run) => `M${place(run[0])}h0`).join(""));
      if (this.area && at === 0) {
        const base = y(0), ends = (run) => [run[0][0], run[run.length - 1][0]].map((x) => `${x.toFixed(1)} ${base}`);
        setAttribute(this.fill, "d", lines.map((run) => `M${ends(run)[0]}L${run.map(place).join("L")}L${ends(run)[1]}Z`).join(""));
      }
    });
    this.drawCursor();
  }

  // The runs of points [x, value] between gaps, where values are missing.
  runs(values) {
    const runs = [];
    let run = null, last = null;
    this.times_us.forEach((time_us, at) => {
      if (time_us < this.span.from) return;
      const missing = values[at] === null || values[at] === undefined;
      if (missing || (last !== null && time_us - last > this.gap_us)) run = null;
      if (!missing) {
        if (run === null) runs.push((run = []));
        run.push([this.x(time_us), values[at]]);
      }
      last = time_us;
    });
    return runs;
  }

  drawCursor() {
    super.drawCursor();
    const at = this.span.cursor === null ? this.times_us.length - 1 : nearest(this.times_us, this.span.cursor);
    this.keys.forEach((key, line) => setText(key, this.form(this.values[line][at] ?? null)));
  }
}

// The band of views, coloured by the gateway's state.
export class Band extends Plot {
  constructor(title, span) {
    super(title, span, 46, true);
    this.changes = [];
    this.told = h("span", { class: "tag" });
    this.caption.append(this.told);
  }

  show(changes) {
    this.changes = changes;
    this.draw();
  }

  draw() {
    const { from, until } = this.span;
    const marks = this.changes.flatMap((change, at) => {
      const begin = Math.max(from, change.time_us), end = Math.min(until, this.changes[at + 1]?.time_us ?? until);
      if (end <= begin) return [];
      const x = this.x(begin), width = Math.max(1.5, this.x(end) - x - 1);
      const level = change.state === "primary" ? "" : change.state === "unknown" || change.state === "halted" ? "bad" : "warn";
      const band = svg("rect", { class: `band ${level} ${at % 2 ? "odd" : ""}`, x, y: TOP, width, height: this.height - BOTTOM - TOP });
      const words = level ? change.state : `${change.view_text} ${change.coordinator}`;
      const text = svg("text", { class: `band-text ${level ? "on" : ""}`, x: x + 5, y: TOP + 15 }, words);
      return width > words.length * 6.6 + 8 ? [band, text] : [band];
    });
    this.grid.replaceChildren(...this.times());
    this.marks.replaceChildren(...marks);
    this.drawCursor();
  }

  drawCursor() {
    super.drawCursor();
    const { cursor } = this.span;
    const change = this.changes.findLast((one) => one.time_us <= (cursor ?? Infinity));
    const words = change ? `${cursor === null ? "" : `${clock(cursor)}  `}${describe(change)}` : "";
    setText(this.told, words);
  }
}

export function describe(change) {
  if (change.state === "unknown") return "the gateway does not answer";
  const view = change.view ? `view ${change.view_text}, ${change.coordinator ? `${change.coordinator} coordinates` : "no coordinator of"} ${change.members.join(", ")}` : "no view";
  return `${change.state}: ${view}`;
}

// The next of 1, 2, 5 and their multiples (of powers of two for sizes), so that the scale does not change with each point.
function nice(top, base) {
  const power = base ** Math.floor(Math.log(top) / Math.log(base));
  const steps = base === 10 ? [1, 1.5, 2, 3, 4, 5, 6, 8, 10] : [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
  return power * steps.find((step) => step * power >= top * 1.02 || step === steps[steps.length - 1]);
}

function nearest(times_us, us) {
  let low = 0, high = times_us.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times_us[middle] < us) low = middle + 1;
    else high = middle;
  }
  return low > 0 && us - times_us[low - 1] < times_us[low] - us ? low - 1 : low;
}
