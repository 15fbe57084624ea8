// Readable numbers, sizes and times. Times are UTC, as in the gateway's logs.

const DASH = "–";
const known = (value) => typeof value === "number" && Number.isFinite(value);

export function count(value) {
  return known(value) ? Math.round(value).toLocaleString("en-US") : DASH;
}

export function short(value) {
  if (!known(value)) return DASH;
  const size = Math.abs(value);
  for (const [unit, amount] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (size >= amount * 9.9995) return `${three(value / amount)} ${unit}`;
  }
  return size >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString("en-US") : three(value);
}

const three = (value) => {
  const text = Math.abs(value) >= 100 ? value.toFixed(0) : Math.abs(value) >= 10 ? value.toFixed(1) : value.toFixed(2);
  return text.replace(/\.0+$/, "");
};

export function bytes(value) {
  if (!known(value)) return DASH;
  let amount = value;
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (Math.abs(amount) < 1024 || unit === "TiB") return unit === "B" ? `${Math.round(amount)} B` : `${three(amount)} ${unit}`;
    amount /= 1024;
  }
  return DASH;
}

export function micros(value) {
  if (!known(value)) return DASH;
  if (value >= 1e6) return `${three(value / 1e6)} s`;
  return value >= 1000 ? `${three(value / 1000)} ms` : `${Math.round(value)} µs`;
}

export function ago(us) {
  if (!known(us) || us < 0) return DASH;
  const s = us / 1e6;
  if (s < 1) return "now";
  if (s < 120) return `${Math.floor(s)} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min`;
  return s < 172800 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} d`;
}

const iso = (us) => new Date(us / 1000).toISOString();
export const clock = (us) => (known(us) ? iso(us).slice(11, 19) : DASH);
export const minute = (us) => iso(us).slice(11, 16);

export function moment(us) {
  if (!known(us) || us === 0) return DASH;
  const text = iso(us);
  return text.slice(0, 10) === new Date().toISOString().slice(0, 10) ? text.slice(11, 19) : `${text.slice(0, 10)} ${text.slice(11, 19)}`;
}

export const counted = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
