// The page of records: browses the log page by page, with each record as `tutti tail` prints it.

import { get, records } from "./api.js";
import { h, setText } from "./dom.js";
import { bytes, count } from "./format.js";

const LIMIT = 50, FOLLOW_MS = 2000, CUT_OPEN = 262144;
const COLUMNS = [["Offset", "n", "88px"], ["Time (UTC)", "", "216px"], ["Topic", "", "12%"], ["Key", "", "14%"], ["Value", "value", ""], ["", "n", "64px"]];

export class Records {
  constructor(app) {
    this.app = app;
    this.page = null;
    this.followed = 0;
    this.turn = 0;
    this.makeForm();
    this.body = h("tbody");
    const heads = COLUMNS.map(([title, kind]) => h("th", { scope: "col", class: kind || false }, title));
    const widths = COLUMNS.map(([, , width]) => h("col", width ? { width } : {}));
    this.table = h("table", { class: "records" }, h("caption", { class: "hidden" }, "Records"), h("colgroup", {}, ...widths), h("thead", {}, h("tr", {}, ...heads)), this.body);
    this.problem = h("p", { class: "problem", role: "alert", hidden: true });
    this.none = h("p", { class: "empty", hidden: true });
    this.element = h("section", { "aria-label": "Records" }, this.form, this.pager, this.problem,
      h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Records" }, this.table, this.none));
  }

  makeForm() {
    const field = (label, input) => h("label", {}, label, input);
    this.topics = h("datalist", { id: "topic-names" });
    this.topic = h("input", { name: "topic", list: "topic-names", placeholder: "all", autocomplete: "off", spellcheck: "false", size: 18 });
    this.key = h("input", { name: "key", placeholder: "any", autocomplete: "off", spellcheck: "false", size: 18 });
    this.place = h("input", { name: "place", placeholder: "newest", autocomplete: "off", spellcheck: "false", size: 26, "aria-describedby": "place-help" });
    this.form = h("form", { class: "search", role: "search" }, field("Topic", this.topic), field("Key", this.key), field("From offset or time", this.place), this.topics,
      h("button", { type: "submit" }, "Show"), h("span", { id: "place-help", class: "tag" }, "1017, earliest, or 2026-01-31T12:00:00Z; empty: the newest"));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      const place = this.place.value.trim();
      const at = place === "" ? {} : /^(\d+|earliest|latest)$/.test(place) ? { start: place } : { time: place };
      this.go({ topic: this.topic.value, key: this.key.value, ...at });
    });
    const button = (words, act) => h("button", { type: "button", onclick: act }, words);
    this.older = button("← Older", () => this.go({ ...this.filter(), before: this.page.first }));
    this.newer = button("Newer →", () => this.go({ ...this.filter(), start: this.page.next }));
    this.newest = button("Newest", () => this.go(this.filter()));
    this.follow = h("button", { type: "button", "aria-pressed": "false", onclick: () => this.setFollow(this.follow.getAttribute("aria-pressed") !== "true") }, "Follow");
    this.note = h("p", { "aria-live": "polite" });
    this.pager = h("div", { class: "pager" }, this.older, this.newer, this.newest, this.follow, this.note);
  }

  filter() {
    return { topic: this.asked?.topic, key: this.asked?.key };
  }

  // The address holds the parameters of the page, so that it can be shared, and the browser's back button works.
  go(asked) {
    const wanted = Object.entries(asked).filter(([, value]) => value !== undefined && value !== "" && value !== null);
    const hash = `#/records${wanted.length ? `?${new URLSearchParams(wanted.map(([name, value]) => [name, String(value)]))}` : ""}`;
    if (location.hash === hash) this.enter(new URLSearchParams(wanted));
    else location.hash = hash;
  }

  enter(parameters) {
    this.asked = Object.fromEntries(parameters);
    this.topic.value = this.asked.topic ?? "";
    this.key.value = this.asked.key ?? "";
    this.place.value = this.asked.start ?? this.asked.time ?? "";
    this.setFollow(false);
    this.load();
    this.nameTopics();
  }

  async nameTopics() {
    try {
      const told = await get("topics");
      this.topics.replaceChildren(...told.topics.map((topic) => h("option", { value: topic.name })));
    } catch {
      // the list of topics only helps with typing
    }
  }

  setFollow(on) {
    this.follow.setAttribute("aria-pressed", String(on));
    this.following = on;
    if (on) this.load(this.filter());
  }

  async load(asked = this.asked) {
    const turn = ++this.turn;
    try {
      const page = await records({ limit: LIMIT, ...Object.fromEntries(Object.entries(asked).filter(([, value]) => value)) });
      if (turn !== this.turn) return;
      this.problem.hidden = true;
      this.show(page);
    } catch (problem) {
      if (turn !== this.turn) return;
      if (problem.status === 401) this.app.locked(problem);
      this.problem.hidden = false;
      this.none.hidden = true;
      setText(this.problem, problem.message);
    }
  }

  show(page) {
    this.page = page;
    const open = new Set([...this.body.querySelectorAll("[aria-expanded=true]")].map((one) => one.dataset.offset));
    const lines = [...page.lines].reverse();
    const known = new Map([...this.body.children].filter((row) => row.dataset.offset).map((row) => [row.dataset.offset, row]));
    this.body.replaceChildren(...lines.flatMap((line) => {
      const row = known.get(String(line.offset)) ?? this.row(line);
      return open.has(String(line.offset)) && row.detail ? [row, row.detail] : [row];
    }));
    this.table.hidden = lines.length === 0;
    this.none.hidden = lines.length > 0;
    const between = page.next > page.first ? `offsets ${count(page.first)} to ${count(page.next - 1)}` : "nothing";
    setText(this.none, page.frontier === page.start ? "The log has no records." : `No such record among ${between}.`);
    setText(this.note, `${between} of ${count(page.start)} to ${count(page.frontier - 1)}, newest first`);
    this.older.disabled = page.first <= page.start;
    this.newer.disabled = page.next >= page.frontier;
  }

  row(line) {
    const toggle = h("button", { type: "button", class: "link", "aria-expanded": "false", "data-offset": line.offset, onclick: () => this.toggle(row, toggle, line) }, "Open");
    const row = h("tr", { "data-offset": line.offset }, h("td", { class: "n" }, String(line.offset)), h("td", {}, line.timestamp.replace("T", " ").replace("Z", "")),
      h("td", { title: line.topic }, line.topic), h("td", {}, shown(line, "key")), h("td", { class: "value" }, shown(line, "value")), h("td", { class: "n" }, toggle));
    return row;
  }

  async toggle(row, toggle, line) {
    const opened = toggle.getAttribute("aria-expanded") === "true";
    toggle.setAttribute("aria-expanded", String(!opened));
    setText(toggle, opened ? "Open" : "Close");
    if (opened) {
      row.detail.remove();
      return;
    }
    row.detail ??= h("tr", { class: "open" }, h("td", { colspan: COLUMNS.length }, detail(line)));
    row.after(row.detail);
    if (line.value_bytes || line.key_bytes) {
      try {
        const [whole] = (await records({ start: line.offset, limit: 1, cut: CUT_OPEN })).lines;
        if (whole?.offset === line.offset) row.detail.firstChild.replaceChildren(detail(whole));
      } catch {
        // the truncated record stays on screen
      }
    }
  }

  async tick() {
    if (this.following && Date.now() - this.followed >= FOLLOW_MS) {
      this.followed = Date.now();
      await this.load(this.filter());
    }
  }
}

function shown(line, name) {
  const text = line[name], base64 = line[`${name}_base64`];
  if (typeof text === "string") return text === "" ? h("span", { class: "none" }, "empty") : text;
  if (base64 !== undefined) return h("span", {}, h("span", { class: "none" }, "base64 "), base64);
  return h("span", { class: "none" }, "none");
}

function detail(line) {
  const fields = ["offset", "topic", "timestamp", "gateway", "producer", "sequence", "view", "tick"].flatMap((name) => [h("dt", {}, name), h("dd", {}, String(line[name]))]);
  const headers = (line.headers ?? []).flatMap((header) => [h("dt", {}, "header"), h("dd", {}, `${header.key} = `, shown(header, "value"))]);
  const size = (name) => (line[`${name}_bytes`] ? [h("span", { class: "none" }, ` (${bytes(line[`${name}_bytes`])} in all)`)] : []);
  return h("div", {}, h("dl", {}, ...fields, ...headers, h("dt", {}, "key"), h("dd", {}, shown(line, "key"), ...size("key")), h("dt", {}, "value"), h("dd", {}, ...size("value"))),
    h("pre", { tabindex: "0", "aria-label": "Value" }, pretty(line)));
}

function pretty(line) {
  if (typeof line.value !== "string") return shown(line, "value");
  try {
    const value = JSON.parse(line.value);
    return typeof value === "object" && value !== null ? JSON.stringify(value, null, 2) : line.value;
  } catch {
    return line.value;
  }
}
