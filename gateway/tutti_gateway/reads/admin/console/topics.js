// The page of topics: size and growth of each.

import { get } from "./api.js";
import { Table, h, setText } from "./dom.js";
import { bytes, count, counted, moment, short } from "./format.js";

const EVERY_MS = 3000;

export class Topics {
  constructor(app) {
    this.app = app;
    this.asked = 0;
    this.before = new Map();
    this.note = h("p");
    const shown = (row, cell) => {
      if (cell.firstChild?.textContent === row.name) return;
      cell.replaceChildren(h("a", { href: `#/records?${new URLSearchParams({ topic: row.name })}` }, row.name));
    };
    this.table = new Table("Topics", [
      { title: "Topic", cell: shown, sort: (row) => row.name },
      { title: "Records", kind: "n", text: (row) => count(row.records), sort: (row) => row.records },
      { title: "Records/s", kind: "n", text: (row) => (row.rate === null ? "–" : short(row.rate)), sort: (row) => row.rate ?? -1 },
      { title: "Bytes", kind: "n", text: (row) => bytes(row.bytes), sort: (row) => row.bytes },
      { title: "Bytes/s", kind: "n", text: (row) => (row.flow === null ? "–" : bytes(row.flow)), sort: (row) => row.flow ?? -1 },
      { title: "First offset", kind: "n", text: (row) => (row.first_offset < 0 ? "–" : count(row.first_offset)), sort: (row) => row.first_offset },
      { title: "Last offset", kind: "n", text: (row) => (row.first_offset < 0 ? "–" : count(row.last_offset)), sort: (row) => row.last_offset },
      { title: "Last record (UTC)", text: (row) => (row.first_offset < 0 ? "–" : moment(row.last_time_us)), sort: (row) => row.last_time_us },
    ], (row) => row.name, "The log holds no topic yet.");
    this.element = h("section", { "aria-labelledby": "h-topics" }, h("div", { class: "head" }, h("h2", { id: "h-topics" }, "Topics"), this.note), this.table.element);
  }

  async tick() {
    if (Date.now() - this.asked < EVERY_MS) return;
    this.asked = Date.now();
    const told = await get("topics");
    const now = performance.now();
    const rows = told.topics.map((topic) => {
      const old = this.before.get(topic.name);
      const seconds = old ? (now - old.at) / 1000 : 0;
      return { ...topic, rate: old ? (topic.records - old.records) / seconds : null, flow: old ? (topic.bytes - old.bytes) / seconds : null };
    });
    this.before = new Map(told.topics.map((topic) => [topic.name, { at: now, records: topic.records, bytes: topic.bytes }]));
    const less = told.total > rows.length ? `, the first ${count(rows.length)} by name` : "";
    setText(this.note, `${counted(told.total, "topic")}${less}; records and bytes ever committed in the ordered log`);
    this.table.show(rows);
  }
}
