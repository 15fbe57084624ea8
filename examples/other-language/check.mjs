// Check this code against the test vectors of a checkout: node examples/other-language/check.mjs docs/reference/vectors/*.json

import { deepStrictEqual as same } from "node:assert";
import { readFileSync } from "node:fs";
import {
  crc32c, decodeBody, decodeFrame, decodeReceipts, decodeRow, decodeSegment, encodeBody, encodeHeader, encodeSubmit, pack, padded, unpack,
} from "./bytes.mjs";
import { GREETING, READY, control, zmtp } from "./producer.mjs";

/** Decode a value of a vector: {"hex": ...} is a buffer. */
const decoded = (value) => {
  if (Array.isArray(value)) return value.map(decoded);
  if (value === null || typeof value !== "object") return value;
  if (Object.keys(value).join() === "hex") return Buffer.from(value.hex, "hex");
  return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, decoded(inner)]));
};

const plain = (value) => (value instanceof Uint8Array ? Buffer.from(value) : value);
const encodeFrame = (frame) =>
  Buffer.concat([encodeHeader(frame), ...[frame.progress, frame.body].flatMap((part) => [part, Buffer.alloc(padded(part.length) - part.length)])]);

const checks = {
  crc32c: (bytes, says) => same(crc32c(bytes), says),
  zmtp(bytes, says) {
    if (says.greeting) same(bytes, GREETING);
    else same(zmtp(says.data, says.flags & ~2), bytes);
    if (says.data?.toString("latin1", 1, 6) === "READY") same(bytes, READY);
  },
  control(bytes, says) {
    const { type, ...fields } = unpack(bytes.subarray(1));
    same({ type, ...fields }, says);
    same(control(type, fields), bytes);
  },
  body(bytes, says) {
    same(decodeBody({ flags: 0, body: bytes }).map((record) => ({ ...record, key: plain(record.key), value: plain(record.value) })), says.records);
    same(encodeBody(says.records), { body: bytes, raw_length: says.raw_length });
  },
  frame(bytes, { previous_crc, ...says }) {
    same(decodeFrame(bytes, 0, previous_crc), says);
    same(encodeFrame({ ...says, previous_crc }), bytes);
  },
  submit: (parts, says) => same(encodeSubmit(says), parts),
  receipts: (bytes, says) => same(decodeReceipts(bytes), says),
  segment: (bytes, says) => same(decodeSegment(bytes), says),
  row: (bytes, says) => same(decodeRow(bytes), says),
  mark(bytes, says) {
    same(crc32c(bytes.subarray(0, 60)), bytes.readUInt32LE(60));
    same([bytes.toString("latin1", 0, 4), bytes.readUInt32LE(4), Number(bytes.readBigUInt64LE(16))], ["TUTM", says.chain, says.position]);
  },
};

let count = 0;
for (const file of process.argv.slice(2)) {
  for (const { name, kind, bytes, says } of JSON.parse(readFileSync(file)).vectors) {
    try {
      checks[kind](Array.isArray(bytes) ? bytes.map((part) => Buffer.from(part, "hex")) : Buffer.from(bytes, "hex"), decoded(says));
      count += 1;
    } catch (error) {
      console.error(`${file}: ${kind} "${name}": ${error.message.split("\n")[0]}`);
      process.exitCode = 1;
    }
  }
}
console.log(`${count} vectors match`);
same(unpack(pack([1, -1, 255, 65536, -33, "x", null, true])), [1, -1, 255, 65536, -33, "x", null, true]);
