// The time series of this page: the gateway's history, and the points since. Bounded, so that a page that stays open for a month
// uses no more memory than the largest range.

const CHANGES_MAX = 200;

export class Past {
  constructor(most) {
    this.most = most;
    this.times_us = [];
    this.columns = new Map();
    this.changes = [];
    this.since = 0;
  }

  add(told) {
    told.fields.forEach((name, at) => {
      if (name !== "time_us" && !this.columns.has(name)) this.columns.set(name, this.times_us.map(() => null));
      if (name === "time_us") return;
      const column = this.columns.get(name);
      for (const point of told.points) column.push(point[at]);
      column.splice(0, Math.max(0, column.length - this.most));
    });
    for (const point of told.points) this.times_us.push(point[0]);
    this.times_us.splice(0, Math.max(0, this.times_us.length - this.most));
    this.changes.push(...(told.changes ?? []));
    this.changes.splice(0, Math.max(0, this.changes.length - CHANGES_MAX));
    const newest = [this.times_us[this.times_us.length - 1] ?? 0, this.changes[this.changes.length - 1]?.time_us ?? 0];
    this.since = Math.max(this.since, ...newest);
  }

  last(name) {
    const column = this.columns.get(name);
    return column?.[column.length - 1] ?? null;
  }

  // The mean of the last few seconds, which changes slowly enough to read.
  lately(name, seconds = 5) {
    const some = (this.columns.get(name) ?? []).slice(-seconds).filter((value) => value !== null);
    return some.length ? some.reduce((sum, value) => sum + value, 0) / some.length : null;
  }
}
