// Elements without markup: the contents of records become text only, so no script in them can run.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

// A table that updates its row elements in place, so that a selection or the focus survives an update.
export class Table {
  // columns: {title, text(row), kind?, cell?(row, td), level?(row), sort?(row)}; key(row) names a row.
  constructor(caption, columns, key, empty) {
    this.columns = columns;
    this.key = key;
    this.rows = new Map();
    this.last = [];
    this.sorted = null;
    this.heads = columns.map((column, at) => {
      const head = h("th", { scope: "col", class: column.kind ?? false });
      if (column.sort) {
        head.append(h("button", { type: "button", onclick: () => this.order(at) }, column.title));
        head.setAttribute("aria-sort", "none");
      } else head.append(column.title);
      return head;
    });
    this.body = h("tbody");
    this.none = h("p", { class: "empty" }, empty);
    this.table = h("table", {}, h("caption", { class: "hidden" }, caption), h("thead", {}, h("tr", {}, ...this.heads)), this.body);
    this.element = h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption }, this.table, this.none);
  }

  order(at, down = this.sorted?.at === at ? !this.sorted.down : this.columns[at].kind === "n") {
    this.sorted = { at, down };
    this.heads.forEach((head, place) => {
      if (head.hasAttribute("aria-sort")) head.setAttribute("aria-sort", place === at ? (down ? "descending" : "ascending") : "none");
    });
    this.show(this.last);
  }

  show(rows) {
    this.last = rows;
    if (this.sorted) {
      const { at, down } = this.sorted;
      const by = this.columns[at].sort;
      rows = [...rows].sort((one, other) => {
        const [low, high] = down ? [by(other), by(one)] : [by(one), by(other)];
        return low < high ? -1 : low > high ? 1 : 0;
      });
    }
    const seen = new Set();
    rows.forEach((row, place) => {
      const key = this.key(row);
      seen.add(key);
      let line = this.rows.get(key);
      if (!line) {
        line = h("tr", {}, ...this.columns.map((column) => h("td", { class: column.kind ?? false })));
        this.rows.set(key, line);
      }
      if (this.body.children[place] !== line) this.body.insertBefore(line, this.body.children[place] ?? null);
      this.columns.forEach((column, at) => {
        const cell = line.children[at];
        if (column.cell) column.cell(row, cell);
        else setText(cell, column.text(row));
        if (column.level) setAttribute(cell, "class", [column.kind, column.level(row)].filter(Boolean).join(" ") || null);
      });
    });
    for (const [key, line] of this.rows) {
      if (!seen.has(key)) {
        line.remove();
        this.rows.delete(key);
      }
    }
    this.table.hidden = rows.length === 0;
    this.none.hidden = rows.length > 0;
  }
}
