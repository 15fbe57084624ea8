// Print the committed records of a data directory, its gateway up or down: node read.mjs DIR
// Written from the page formats.md of the documentation. Index rows list the decided frames; frames are read from the segments and checked.

import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { BATCH, TOPIC, TXN, decodeBody, decodeFrame, decodeRow, decodeSegment, unpack } from "./bytes.mjs";

const ABORTED = 1, STAGED = 2;

/** Return the start of the log: position of the first valid segment, and the first readable offset. */
function logStart(directory) {
  if (!existsSync(join(directory, "start"))) return { first: 0, offset: 0 };
  const start = readFileSync(join(directory, "start"));
  return { first: Number(start.readBigUInt64LE(8)), offset: Number(start.readBigInt64LE(16)) };
}

/** Yield {first, rows, segment} for each segment, in order. */
function* segments(log, from) {
  const names = readdirSync(log).filter((name) => /^\d{20}\.seg$/.test(name)).sort();
  for (const name of names) {
    if (Number(name.slice(0, 20)) < from) continue;
    const segment = readFileSync(join(log, name));
    const { first } = decodeSegment(segment);
    const index = readFileSync(join(log, name.replace(".seg", ".idx")));
    const rows = [];
    for (let at = 64; at + 96 <= index.length; at += 96) {
      const row = decodeRow(index.subarray(at, at + 96));
      if (!row || row.position !== first + rows.length) break; // not decided yet
      rows.push(row);
    }
    yield { first, rows, segment };
  }
}

/** Yield the records {offset, topic, key, value, timestamp}, in order. */
export function* records(directory) {
  const { first: from, offset: start } = logStart(directory);
  const all = [...segments(join(directory, "log"), from)];
  const topics = new Map();
  const frameAt = (position) => {
    const one = all.findLast(({ first }) => first <= position);
    const row = one.rows[position - one.first];
    return decodeFrame(one.segment, row.place);
  };
  for (const { rows, segment } of all) {
    for (const row of rows) {
      if (row.kind === TOPIC) topics.set(row.topic, unpack(decodeFrame(segment, row.place).body)[0]);
      if (row.flags & (ABORTED | STAGED) || (row.kind !== BATCH && row.kind !== TXN)) continue;
      const frame = decodeFrame(segment, row.place);
      const batches = row.kind === TXN ? unpack(frame.body)[0].map(frameAt) : [frame];
      let offset = row.offset;
      for (const batch of batches)
        for (const record of decodeBody(batch)) {
          if (offset >= start) yield { offset, topic: topics.get(batch.topic) ?? `#${batch.topic}`, ...record };
          offset += 1;
        }
    }
  }
}

if (process.argv[1]?.endsWith("read.mjs")) {
  if (process.argv.length !== 3) {
    console.error("node read.mjs DIR");
    process.exit(2);
  }
  for (const { offset, topic, key, value } of records(process.argv[2]))
    console.log(JSON.stringify({ offset, topic, key: key && key.toString(), value: value && value.toString() }));
}
