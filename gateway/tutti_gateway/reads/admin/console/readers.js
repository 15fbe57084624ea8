// The page of readers: Spark queries, and named readers with their committed offsets.

import { get } from "./api.js";
import { Table, h, setText } from "./dom.js";
import { count, counted } from "./format.js";
import { queriesTable } from "./overview.js";

const EVERY_MS = 3000;

export class Readers {
  constructor(app) {
    this.app = app;
    this.asked = 0;
    this.queries = queriesTable();
    this.note = h("p");
    this.table = new Table("Named readers", [
      { title: "Reader", text: (row) => row.name, sort: (row) => row.name },
      { title: "Saved offset", kind: "n", text: (row) => count(row.offset), sort: (row) => row.offset },
      { title: "Lag (records)", kind: "n", text: (row) => count(row.lag_records), sort: (row) => row.lag_records },
      { title: "", kind: "grow", text: () => "" },
    ], (row) => row.name, "No reader has saved an offset.");
    this.element = h("div", {},
      h("section", { "aria-labelledby": "h-q" }, h("div", { class: "head" }, h("h2", { id: "h-q" }, "Spark queries"), h("p", {}, "that report their progress to this gateway")), this.queries.element),
      h("section", { "aria-labelledby": "h-r" }, h("div", { class: "head" }, h("h2", { id: "h-r" }, "Named readers"), this.note), this.table.element));
  }

  async tick() {
    this.queries.show(this.app.status?.queries ?? []);
    if (Date.now() - this.asked < EVERY_MS) return;
    this.asked = Date.now();
    const told = await get("readers");
    setText(this.note, `${counted(told.total, "reader")}; offsets committed in the log, the same on every gateway`);
    this.table.show(told.readers);
  }
}
