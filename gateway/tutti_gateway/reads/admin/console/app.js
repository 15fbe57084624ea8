// The application: fetches the status once a second, shows it, and keeps the last one while the gateway does not answer.

import { get, setToken } from "./api.js";
import { h, setAttribute, setText } from "./dom.js";
import { ago, clock, moment } from "./format.js";
import { Overview } from "./overview.js";
import { Past } from "./past.js";
import { Readers } from "./readers.js";
import { Records } from "./records.js";
import { Topics } from "./topics.js";

const EVERY_MS = 1000, CONSOLES_MS = 15_000, LATE_MS = 3000;
const MEANS = {
  minority: "This gateway is cut off from a majority of the group. It serves committed records and accepts no new ones; clients use the other gateways.",
  joining: "This gateway is not in a view yet: it waits for other gateways, or catches up. It accepts no new records.",
  leaving: "This gateway is leaving the group. It accepts no new records.",
  halted: "This gateway has halted and takes no part in the group until a restart. It serves its committed records.",
  unknown: "The gateway's process does not answer. Its committed records can still be read; the other figures are from its last answer.",
};
const $ = (id) => document.getElementById(id);

class App {
  constructor() {
    this.status = null;
    this.past = new Past(900);
    this.consoles = {};
    this.consolesAsked = 0;
    this.heard = null; // time of the admin port's last answer, ms
    this.skew_us = 0; // lead of the gateway's clock over this computer's
    this.pages = { overview: new Overview(this), topics: new Topics(this), records: new Records(this), readers: new Readers(this) };
    this.shown = null;
    window.addEventListener("hashchange", () => this.route());
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.wake?.());
    $("login").addEventListener("submit", (event) => {
      event.preventDefault();
      setToken($("token").value);
      $("token").value = "";
      $("login").hidden = true;
      this.wake?.();
      this.route(true);
    });
    makeThemes();
    this.route();
  }

  get now_us() {
    return (this.last_us ?? Date.now() * 1000 + this.skew_us) + 0;
  }

  route(again = false) {
    const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
    const name = Object.hasOwn(this.pages, path) ? path : "overview";
    const page = this.pages[name];
    if (this.shown !== page) {
      const first = this.shown === null;
      this.shown = page;
      $("main").replaceChildren(page.element);
      for (const link of document.querySelectorAll("nav a")) setAttribute(link, "aria-current", link.dataset.page === name ? "page" : null);
      if (!first) $("main").focus({ preventScroll: true });
    } else if (again !== true && !page.enter) return;
    page.asked = page.enter ? page.asked : 0;
    page.enter?.(new URLSearchParams(query));
    this.refresh();
  }

  async run() {
    for (;;) {
      const began = performance.now();
      await this.look();
      await this.refresh();
      const left = Math.max(50, EVERY_MS - (performance.now() - began));
      // A hidden page fetches nothing; the gateway keeps the history meanwhile.
      await new Promise((resolve) => {
        this.wake = resolve;
        if (document.visibilityState === "visible") setTimeout(resolve, left);
      });
    }
  }

  async look() {
    try {
      const [history, status] = await Promise.all([get("history", this.past.since ? { since: this.past.since } : { seconds: 900 }), this.askStatus()]);
      this.skew_us = history.now_us - Date.now() * 1000;
      this.last_us = history.now_us;
      this.past.add(history);
      this.status = status;
      this.heard = performance.now();
      this.trouble = "";
    } catch (problem) {
      if (problem.status === 401) this.locked(problem);
      this.trouble = problem.message;
    }
    this.showHead();
    if (this.heard !== null && Date.now() - this.consolesAsked > CONSOLES_MS) {
      this.consolesAsked = Date.now();
      get("gateways").then((found) => (this.consoles = Object.fromEntries(Object.entries(found).filter(([, url]) => isPage(url)))), () => {});
    }
  }

  // If the gateway does not answer its reads process, the last status stays, updated with what the reads process knows.
  async askStatus() {
    try {
      return await get("status");
    } catch (problem) {
      if (problem.status !== 503 || !problem.told?.state) throw problem;
      return { ...this.status, ...problem.told };
    }
  }

  async refresh() {
    try {
      await this.shown.tick();
      $("refused").hidden = true;
    } catch (problem) {
      if (problem.status === 401) this.locked(problem);
      else if (problem.status === undefined) throw problem;
      else if (problem.status > 0) {
        $("refused").hidden = false;
        setText($("refused"), problem.message);
      }
    }
  }

  locked(problem) {
    if (!$("login").hidden) return;
    $("login").hidden = false;
    setText($("login-note"), `${problem.message ? `${problem.message}. ` : ""}The token is stored in this page only, until the page is closed.`);
    $("token").focus();
  }

  showHead() {
    const late = this.heard === null || performance.now() - this.heard > LATE_MS;
    const status = this.status;
    setText($("clock"), `${clock(Date.now() * 1000 + this.skew_us)} UTC`);
    setText($("pulse"), this.heard === null ? (this.trouble ? "no answer" : "connecting") : late ? `no answer for ${ago((performance.now() - this.heard) * 1000)}` : "live");
    setAttribute($("pulse"), "data-late", late && this.trouble ? "" : null);
    document.body.classList.toggle("stale", late && status !== null);
    if (status) {
      setText($("gateway"), status.gateway ?? "gateway");
      setText($("group"), status.group ? `in ${status.group}` : "");
      setText($("state"), late ? `was ${status.state}` : status.state);
      setAttribute($("state"), "data-state", late ? "unknown" : status.state);
      document.title = `${!late && status.state === "primary" ? "" : `${late ? "no answer" : status.state} · `}${status.gateway ?? "Tutti"} · Tutti`;
    }
    this.showBanner(late && this.trouble ? [["bad", "No answer", `from this gateway's admin port: ${this.trouble}. The page shows its last answer.`]] : status ? troubles(status, this.past.changes) : []);
  }

  showBanner(found) {
    const banner = $("banner");
    const words = JSON.stringify(found);
    if (banner.dataset.words === words) return;
    banner.dataset.words = words;
    banner.hidden = found.length === 0;
    setAttribute(banner, "data-level", found.some(([level]) => level === "bad") ? "bad" : "warn");
    banner.replaceChildren(...found.map(([, title, text]) => h("p", {}, h("b", {}, title), ` ${text}`)));
  }
}

// The problems that an operator must see first: [level, title, text].
function troubles(status, changes) {
  const found = [];
  const since = changes.findLast((change, at) => change.state === status.state && changes[at - 1]?.state !== status.state);
  if (status.state !== "primary") {
    const when = since ? ` Since ${moment(since.time_us)} UTC.` : "";
    const level = status.state === "halted" || status.state === "unknown" ? "bad" : "warn";
    found.push([level, status.state[0].toUpperCase() + status.state.slice(1) + ".", `${MEANS[status.state] ?? ""}${when}${status.reason ? ` Why: ${sentence(status.reason)}` : ""}`]);
  } else if (status.reason) found.push(["warn", "Accepts no new records:", sentence(status.reason)]);
  const silent = status.silent ?? [];
  if (silent.length && status.state !== "unknown") found.push(["warn", "Silent:", `${silent.join(", ")}.${status.state === "primary" ? " The others are a majority and continue." : ""}`]);
  if (status.disk?.failed) found.push(["bad", "The disk failed:", sentence(status.disk.failed)]);
  if (status.retention?.reason) found.push(["warn", "Retention waits:", sentence(status.retention.reason)]);
  if (status.security?.trouble) found.push(["warn", "Security files:", sentence(`${status.security.trouble}. The gateway reads a corrected file again by itself`)]);
  const lost = status.disk?.damage?.lost ?? [];
  if (lost.length) found.push(["bad", "Corruption.", `Positions ${lost[0]} to ${lost[lost.length - 1]} cannot be read here; the gateway requests them from its peers.`]);
  for (const lane of status.lanes ?? []) if (lane.halted) found.push(["warn", `Lane ${lane.lane} accepts no records:`, sentence(lane.halted)]);
  return found;
}

// True if the url of another gateway is a web page, and not a script that a browser would run.
const isPage = (url) => URL.canParse(url) && ["http:", "https:"].includes(new URL(url).protocol);

const sentence = (text) => (text.endsWith(".") ? text : `${text}.`);

function makeThemes() {
  const button = $("theme"), order = ["auto", "light", "dark"];
  let theme = document.documentElement.dataset.theme ?? "auto";
  const show = () => {
    setText(button, `Theme: ${theme}`);
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  };
  button.addEventListener("click", () => {
    theme = order[(order.indexOf(theme) + 1) % order.length];
    localStorage.setItem("tutti-theme", theme);
    show();
  });
  show();
}

new App().run();
