// The overview page: state of the group, throughput and latency, and recent changes.

import { get } from "./api.js";
import { LAG_LATE, advice } from "./advice.js";
import { Band, Lines, Span, describe } from "./chart.js";
import { Table, h, setAttribute, setText } from "./dom.js";
import { ago, bytes, clock, count, counted, micros, moment, short } from "./format.js";
import { Past } from "./past.js";

const RANGES = { "5 min": 300, "15 min": 900, "24 h": 86400 };
const perSecond = (form) => Object.assign((value) => (value === null ? form(null) : `${form(value)}/s`), { base: form.base });
const sizes = Object.assign((value) => bytes(value), { base: 1024 });
const CHANGES_SHOWN = 12;

export class Overview {
  constructor(app) {
    this.app = app;
    this.seconds = 300;
    this.minutes = new Past(1440);
    this.minutesAsked = 0;
    this.makeFacts();
    this.members = membersTable(app);
    this.makePlots();
    this.queries = queriesTable();
    this.changes = h("ol", { class: "changes" });
    const ranges = Object.entries(RANGES).map(([words, seconds]) =>
      h("button", { type: "button", "aria-pressed": String(seconds === this.seconds), onclick: (event) => this.range(seconds, event.target) }, words));
    this.ranges = ranges;
    this.element = h("div", {},
      this.facts,
      h("section", { "aria-labelledby": "h-group" }, h("div", { class: "head" }, h("h2", { id: "h-group" }, "Group"), this.groupNote), this.members.element),
      h("section", { "aria-labelledby": "h-time" },
        h("div", { class: "head" }, h("h2", { id: "h-time" }, "History"), h("p", {}, "UTC"), h("div", { class: "right", role: "group", "aria-label": "Span of time" }, ...ranges)),
        this.plots),
      h("section", { "aria-labelledby": "h-changes" }, h("div", { class: "head" }, h("h2", { id: "h-changes" }, "Views and states")), this.changes),
      h("section", { "aria-labelledby": "h-queries" }, h("div", { class: "head" }, h("h2", { id: "h-queries" }, "Spark queries"), h("p", {}, "that report to this gateway")), this.queries.element));
  }

  makeFacts() {
    this.values = {};
    const fact = (id, title) => {
      const value = h("dd"), note = h("dd", { class: "note" });
      this.values[id] = { value, note, box: h("div", {}, h("dt", {}, title), value, note) };
      return this.values[id].box;
    };
    this.facts = h("dl", { class: "facts" }, fact("rate", "Committed records"), fact("latency", "Commit time (p99)"), fact("frontier", "Frontier"),
      fact("view", "View"), fact("lag", "Largest lag"), fact("undecided", "Undecided frames"), fact("disk", "Free disk space"),
      fact("retention", "Retention"), fact("clients", "Client sessions"));
    this.groupNote = h("p");
  }

  fact(id, value, note, level = null) {
    const found = this.values[id];
    setText(found.value, value);
    setText(found.note, note);
    setAttribute(found.box, "data-level", level);
  }

  makePlots() {
    const span = (this.span = new Span());
    this.band = new Band("View and state", span);
    const line = (name, label) => ({ name, label });
    const plot = (title, form, options, ...lines) => new Lines(title, span, lines, form, options);
    const rate = perSecond(short), flow = perSecond(sizes);
    this.lines = [
      plot("Committed records", rate, { area: true }, line("committed_records", "ordered"), line("unordered_records", "unordered")),
      plot("Commit time, from arrival to receipt", micros, {}, line("commit_p99_us", "p99"), line("commit_p50_us", "p50")),
      plot("Stages of a commit (p99)", micros, {}, line("sync_p99_us", "sync"), line("vote_p99_us", "vote"), line("decide_p99_us", "decide")),
      plot("Received from clients here", flow, { area: true }, line("ingest_bytes", "")),
      plot("Written to disk here", flow, { area: true }, line("disk_bytes", "")),
      plot("Backlog", short, {}, line("undecided_frames", "undecided frames"), line("lag_max", "largest lag")),
      plot("Read by clients here", rate, { area: true }, line("read_records", "records")),
      plot("Disk syncs here", rate, {}, line("syncs", "")),
      plot("Memory of this gateway", sizes, {}, line("resident_bytes", "")),
    ];
    this.plots = h("div", { class: "plots" }, this.band.element, ...this.lines.map((one) => one.element));
  }

  range(seconds, button) {
    this.seconds = seconds;
    for (const one of this.ranges) setAttribute(one, "aria-pressed", String(one === button));
    this.show();
  }

  async tick() {
    if (this.seconds > 900 && Date.now() - this.minutesAsked > 60_000) {
      this.minutesAsked = Date.now();
      const told = await get("history", { minutes: "" });
      this.minutes = new Past(1440);
      this.minutes.add(told);
    }
    this.show();
  }

  show() {
    const { status, past, now_us } = this.app;
    if (!status) return;
    this.showFacts(status, past);
    const lag = status.lag ?? {};
    this.members.show((status.members ?? []).map((one) => ({ ...one, lag: lag[one.name] ?? one.lag, own: one.name === status.gateway, decides: status.state === "primary" })));
    const voters = (status.members ?? []).filter((one) => one.voter).length;
    setText(this.groupNote, `${counted(voters, "voter")}, ${counted(status.view?.members?.length ?? 0, "member")} in the view; a majority is ${Math.floor(voters / 2) + 1}`);
    this.queries.show(status.queries ?? []);
    this.showChanges(past.changes);
    this.span.until = now_us;
    this.span.from = now_us - this.seconds * 1e6;
    const source = this.seconds > 900 ? this.minutes : past;
    for (const plot of this.lines) plot.show(source.times_us, source.columns, this.seconds > 900 ? 150e6 : 4e6);
    this.band.show(past.changes);
  }

  showFacts(status, past) {
    const p99 = past.last("commit_p99_us"), p50 = past.last("commit_p50_us");
    const unordered = past.lately("unordered_records");
    this.fact("rate", `${short(past.lately("committed_records"))}/s`, unordered ? `and ${short(unordered)}/s unordered` : "in one order");
    this.fact("latency", micros(p99), p50 === null ? "no records" : `p50 ${micros(p50)}`);
    this.fact("frontier", count(status.frontier), status.start ? `the log begins at ${count(status.start)}` : "next offset");
    const view = status.view ?? {};
    this.fact("view", view.id ? view.text : "none", view.coordinator ? `${view.coordinator} coordinates` : "no coordinator", view.coordinator ? null : "warn");
    const lags = Object.entries(status.lag ?? {}).sort((one, other) => other[1] - one[1]);
    const [who, most] = lags[0] ?? ["", 0];
    this.fact("lag", count(most), most ? `positions, ${who}` : "positions", most > LAG_LATE ? "warn" : null);
    this.fact("undecided", count(status.undecided?.frames), bytes(status.undecided?.bytes));
    const disk = status.disk ?? {};
    this.fact("disk", bytes(disk.free_bytes), disk.failed ? "failed" : disk.low ? "too low: no records accepted" : `${count(past.lately("syncs"))} syncs/s`,
      disk.failed ? "bad" : disk.low ? "warn" : null);
    this.showRetention(status.retention ?? {});
    this.fact("clients", count(status.sessions), counted(status.producers, "producer"));
  }

  showRetention(retention) {
    const limits = [retention.time_us ? ago(retention.time_us) : "", retention.bytes ? bytes(retention.bytes) : ""].filter(Boolean);
    const read = Object.keys(retention.keep_for ?? {}).length ? ["until read"] : [];
    const note = retention.held_bytes ? `${bytes(retention.held_bytes)} unread` : [...limits.slice(1).map((limit) => `or ${limit}`), ...read].join(", ");
    this.fact("retention", limits[0] ?? "keeps all", note || (limits.length ? "oldest go first" : "no limit is set"), retention.held_bytes ? "warn" : null);
  }

  showChanges(changes) {
    const newest = changes.slice(-CHANGES_SHOWN).reverse();
    const first = newest[0]?.time_us ?? 0;
    if (first === this.changesShown) return;
    this.changesShown = first;
    this.changes.replaceChildren(...newest.map((change) => {
      const at = changes.indexOf(change);
      const viewed = changes.slice(0, at).findLast((one) => one.view !== 0);
      return h("li", {}, h("time", {}, moment(change.time_us)), h("span", { class: "state", "data-state": change.state }, change.state), h("span", {}, difference(changes[at - 1], change, viewed)));
    }));
  }
}

// The difference between two changes as text; the first change is described whole. `viewed` is the last earlier change with a view.
function difference(before, change, viewed) {
  if (!before || before.state === "unknown" || change.state === "unknown") return describe(change).replace(/^\w+: /, "");
  const words = [];
  if (before.pid !== change.pid) words.push("the gateway restarted");
  if (before.view !== change.view) words.push(change.view ? `view ${change.view_text}, ${change.coordinator ? `${change.coordinator} coordinates` : "no coordinator"}` : "no view");
  const members = change.view === 0 ? change.members : (viewed ?? before).members;
  const left = members.filter((name) => !change.members.includes(name));
  const came = change.members.filter((name) => !members.includes(name));
  if (left.length) words.push(`without ${left.join(", ")}`);
  if (came.length) words.push(`with ${came.join(", ")}`);
  const lost = change.silent.filter((name) => !before.silent.includes(name));
  const heard = before.silent.filter((name) => !change.silent.includes(name));
  if (lost.length) words.push(`${lost.join(", ")} silent`);
  if (heard.length) words.push(`${heard.join(", ")} no longer silent`);
  if (change.reason && !before.reason) words.push(change.reason);
  if (!change.reason && before.reason) words.push("accepts records again");
  return words.join("; ") || change.reason || `${before.state} before`;
}

function membersTable(app) {
  const name = (row, cell) => {
    const url = app.consoles[row.name];
    const shown = `${row.name}|${row.own}|${url}`;
    if (cell.dataset.shown === shown) return;
    cell.dataset.shown = shown;
    const link = url && !row.own ? h("a", { href: url, rel: "noreferrer" }, row.name) : h("b", {}, row.name);
    cell.replaceChildren(link, row.own ? h("span", { class: "tag" }, "  this gateway") : "");
  };
  const state = (row, cell) => {
    if (!cell.firstChild) cell.append(h("span", { class: "state" }));
    setText(cell.firstChild, row.state);
    setAttribute(cell.firstChild, "data-state", row.state);
  };
  const role = (row) => [row.coordinator ? "coordinator" : "", row.voter ? "" : "no vote"].filter(Boolean).join(", ") || "member";
  return new Table("Gateways of the group", [
    { title: "Gateway", cell: name },
    { title: "State", cell: state },
    { title: "Role", text: role },
    { title: "Age (1: oldest)", kind: "n", text: (row) => (row.age ? String(row.age) : "–") },
    { title: "Decided position", kind: "n", text: (row) => count(row.frontier) },
    { title: "Lag (positions)", kind: "n", text: (row) => count(row.lag), level: (row) => (row.lag > LAG_LATE ? "warn" : "") },
    { title: "Last message", kind: "n", text: (row) => (row.own ? "–" : row.heard_us < 0 ? "never" : row.heard_us < 1e6 ? "now" : `${ago(row.heard_us)} ago`), level: (row) => (row.state === "silent" ? "bad" : "") },
    { title: "Round trip", kind: "n", text: (row) => (row.own ? "–" : micros(row.round_trip_us || null)) },
    { title: "Address", text: (row) => row.address },
    { title: "What to do", kind: "grow", text: advice },
  ], (row) => row.number, "No gateway is known yet.");
}

export function queriesTable() {
  return new Table("Spark queries", [
    { title: "Query", text: (row) => row.name || row.label || row.run.slice(0, 8) },
    { title: "State", text: (row) => row.state, level: (row) => (row.state === "running" ? "" : "warn") },
    { title: "Offset", kind: "n", text: (row) => count(row.offset) },
    { title: "Lag (records)", kind: "n", text: (row) => count(row.lag_records) },
    { title: "Lag (time)", kind: "n", text: (row) => micros(row.lag_ms * 1000) },
    { title: "Seen", text: (row) => clock(row.seen_us) },
    { title: "Topics", text: (row) => (row.topics ?? []).join(", ") || "all" },
    { title: "", kind: "grow", text: (row) => row.trouble },
  ], (row) => row.run, "No query reports its progress to this gateway.");
}
