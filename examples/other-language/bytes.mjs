// Encoders and decoders for the pages wire.md and formats.md of the documentation: CRC32C, msgpack, frames, bodies, receipts, index
// rows. They need no library.

const TABLE = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let bit = 0; bit < 8; bit++) n = n & 1 ? (n >>> 1) ^ 0x82f63b78 : n >>> 1;
  return n >>> 0;
});

/** Return the CRC32C of data, continued from `seed`. */
export function crc32c(data, seed = 0) {
  let crc = ~seed >>> 0;
  for (const byte of data) crc = TABLE[(crc ^ byte) & 255] ^ (crc >>> 8);
  return ~crc >>> 0;
}

export const padded = (length) => (length + 7) & ~7;
const padding = (length) => Buffer.alloc(padded(length) - length);
const number = (big) => (Number.isSafeInteger(Number(big)) ? Number(big) : big);

// ---- msgpack: the part that control messages use

export function pack(value) {
  if (value === null) return Buffer.from([0xc0]);
  if (typeof value === "boolean") return Buffer.from([value ? 0xc3 : 0xc2]);
  if (typeof value === "number" || typeof value === "bigint") return packInteger(BigInt(value));
  if (typeof value === "string") return packSized(Buffer.from(value), [0xa0, 31], [0xd9, 0xda, 0xdb]);
  if (Buffer.isBuffer(value)) return packSized(value, null, [0xc4, 0xc5, 0xc6]);
  if (Array.isArray(value)) return Buffer.concat([packHead(value.length, [0x90, 15], [null, 0xdc, 0xdd]), ...value.map(pack)]);
  const entries = Object.entries(value);
  return Buffer.concat([packHead(entries.length, [0x80, 15], [null, 0xde, 0xdf]), ...entries.flat().map(pack)]);
}

function packInteger(value) {
  if (value >= 0n && value < 128n) return Buffer.from([Number(value)]);
  if (value < 0n && value >= -32n) return Buffer.from([256 + Number(value)]);
  const forms = value < 0n ? [[0xd0, 8], [0xd1, 16], [0xd2, 32], [0xd3, 64]] : [[0xcc, 8], [0xcd, 16], [0xce, 32], [0xcf, 64]];
  const magnitude = value < 0n ? -value * 2n - 1n : value; // a signed form has one bit less
  const [head, bits] = forms.find(([, size]) => magnitude < 1n << BigInt(size));
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64BE(BigInt.asUintN(64, value));
  return Buffer.concat([Buffer.from([head]), bytes.subarray(8 - bits / 8)]);
}

function packHead(length, short, heads) {
  if (short && length <= short[1]) return Buffer.from([short[0] | length]);
  if (heads[0] !== null && length < 256) return Buffer.from([heads[0], length]);
  const head = Buffer.alloc(length < 65536 ? 3 : 5);
  head[0] = heads[length < 65536 ? 1 : 2];
  if (length < 65536) head.writeUInt16BE(length, 1);
  else head.writeUInt32BE(length, 1);
  return head;
}

const packSized = (bytes, short, heads) => Buffer.concat([packHead(bytes.length, short, heads), bytes]);

/** Decode the one msgpack value in `data`; throws for unknown forms and for further bytes. */
export function unpack(data) {
  let at = 0;
  const unsigned = (size) => {
    const value = size === 8 ? number(data.readBigUInt64BE(at)) : data.readUIntBE(at, size);
    at += size;
    return value;
  };
  const signed = (size) => {
    const value = size === 8 ? number(data.readBigInt64BE(at)) : data.readIntBE(at, size);
    at += size;
    return value;
  };
  const read = (length) => data.subarray(at, (at += length));
  const list = (length) => Array.from({ length }, value);
  const map = (length) => Object.fromEntries(Array.from({ length }, () => [value(), value()]));
  function value() {
    const head = data[at++];
    if (head < 0x80) return head;
    if (head >= 0xe0) return head - 256;
    if (head < 0x90) return map(head & 15);
    if (head < 0xa0) return list(head & 15);
    if (head < 0xc0) return read(head & 31).toString();
    const size = 1 << (head & 3);
    switch (head) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xc4: return read(unsigned(1));
      case 0xc5: return read(unsigned(2));
      case 0xc6: return read(unsigned(4));
      case 0xca: return data.readFloatBE((at += 4) - 4);
      case 0xcb: return data.readDoubleBE((at += 8) - 8);
      case 0xcc: case 0xcd: case 0xce: case 0xcf: return unsigned(size);
      case 0xd0: case 0xd1: case 0xd2: case 0xd3: return signed(size);
      case 0xd9: return read(unsigned(1)).toString();
      case 0xda: return read(unsigned(2)).toString();
      case 0xdb: return read(unsigned(4)).toString();
      case 0xdc: return list(unsigned(2));
      case 0xdd: return list(unsigned(4));
      case 0xde: return map(unsigned(2));
      case 0xdf: return map(unsigned(4));
      default: throw new Error(`msgpack form 0x${head.toString(16)} is not supported`);
    }
  }
  const result = value();
  if (at !== data.length) throw new Error(`${data.length - at} bytes follow the msgpack value`);
  return result;
}

// ---- frames

export const HEADER = 96;
export const BATCH = 1, TOPIC = 5, TXN = 11;
const CODECS = 3; // flags: lz4, zstd

/** Encode a header of 96 bytes. A header to submit has no view, position and header_crc. */
export function encodeHeader(frame) {
  const header = Buffer.alloc(HEADER);
  header.write("TUT1", "latin1");
  header[4] = 1;
  header[5] = frame.kind;
  header.writeUInt16LE(frame.flags ?? 0, 6);
  header.writeBigUInt64LE(BigInt(frame.view ?? 0), 8);
  header.writeBigUInt64LE(BigInt(frame.position ?? 0), 16);
  header.writeBigUInt64LE(BigInt(frame.producer ?? 0), 24);
  header.writeBigUInt64LE(BigInt(frame.first_sequence ?? 0), 32);
  header.writeBigInt64LE(BigInt(frame.min_timestamp ?? 0), 40);
  header.writeBigInt64LE(BigInt(frame.max_timestamp ?? 0), 48);
  header.writeUInt32LE(frame.epoch ?? 0, 56);
  header.writeUInt32LE(frame.count ?? 0, 60);
  header.writeUInt32LE(frame.topic ?? 0, 64);
  header.writeUInt16LE(frame.origin ?? 0, 68);
  header.writeUInt16LE(frame.progress.length, 70);
  header.writeUInt32LE(frame.body.length, 72);
  header.writeUInt32LE(frame.raw_length ?? 0, 76);
  header.writeUInt32LE(crc32c(frame.body, crc32c(frame.progress)), 80);
  if (frame.position) header.writeUInt32LE(crc32c(header.subarray(0, 92), frame.previous_crc), 92);
  return header;
}

/** Decode the frame at `at` and check the CRC of its body, and the chain if `previous_crc` is given. */
export function decodeFrame(data, at = 0, previous_crc = undefined) {
  const h = data.subarray(at, at + HEADER);
  if (h.length < HEADER || h.toString("latin1", 0, 4) !== "TUT1") throw new Error(`no frame starts at byte ${at}`);
  if (h[4] !== 1) throw new Error(`the frame has version ${h[4]}, and this example supports version 1`);
  const progressLength = h.readUInt16LE(70), bodyLength = h.readUInt32LE(72);
  const bodyAt = at + HEADER + padded(progressLength);
  const frame = {
    kind: h[5], flags: h.readUInt16LE(6), view: number(h.readBigUInt64LE(8)), position: number(h.readBigUInt64LE(16)),
    producer: number(h.readBigUInt64LE(24)), first_sequence: number(h.readBigUInt64LE(32)),
    min_timestamp: number(h.readBigInt64LE(40)), max_timestamp: number(h.readBigInt64LE(48)),
    epoch: h.readUInt32LE(56), count: h.readUInt32LE(60), topic: h.readUInt32LE(64), origin: h.readUInt16LE(68),
    raw_length: h.readUInt32LE(76), body_crc: h.readUInt32LE(80), header_crc: h.readUInt32LE(92),
    progress: data.subarray(at + HEADER, at + HEADER + progressLength), body: data.subarray(bodyAt, bodyAt + bodyLength),
  };
  if (crc32c(frame.body, crc32c(frame.progress)) !== frame.body_crc) throw new Error(`the body at byte ${at} is corrupt`);
  if (previous_crc !== undefined && crc32c(h.subarray(0, 92), previous_crc) !== frame.header_crc)
    throw new Error(`the header at byte ${at} does not continue the chain`);
  return frame;
}

// ---- bodies: the plain form, written without an Arrow library

// The metadata of a plain body: 480 bytes, constant except for the numbers that encodeBody sets (page wire.md, Bodies).
const METADATA = Buffer.alloc(480);
for (const [at, bytes] of [
  [0, "ffffffffd801000014000000000000000c0016000600050008000c000c0000000003040018000000"],
  [48, "00000a0018000c00040008000a0000002c01000010000000"],
  [80, "0000000011000000"],
  [360, "0000000007000000"],
])
  METADATA.write(bytes, at, "hex");

/** Return body and raw_length of records {key, value, timestamp}: key and value are buffers or null, timestamp is in microseconds. */
export function encodeBody(records) {
  const count = records.length, bits = (count + 7) >> 3;
  const buffers = [];
  const extents = [];
  let at = 0;
  const add = (buffer, length = buffer.length) => {
    extents.push([at, length]);
    buffers.push(buffer, padding(buffer.length));
    at += padded(buffer.length);
  };
  const nulls = [];
  for (const name of ["key", "value"]) {
    const column = records.map((record) => record[name] ?? null);
    const validity = Buffer.alloc(bits), ends = Buffer.alloc(4 * (count + 1));
    let end = 0;
    column.forEach((bytes, row) => {
      if (bytes !== null) validity[row >> 3] |= 1 << (row & 7);
      ends.writeInt32LE((end += bytes?.length ?? 0), 4 * (row + 1));
    });
    nulls.push(column.filter((bytes) => bytes === null).length);
    add(nulls.at(-1) ? validity : Buffer.alloc(0));
    add(ends);
    add(Buffer.concat(column.map((bytes) => bytes ?? Buffer.alloc(0))));
  }
  const times = Buffer.alloc(8 * count);
  records.forEach((record, row) => times.writeBigInt64LE(BigInt(record.timestamp), 8 * row));
  add(Buffer.alloc(0));
  add(times);
  add(Buffer.alloc(bits)); // no record has headers
  add(Buffer.alloc(4 * (count + 1)));
  for (const length of [0, 0, 4, 0, 0, 4, 0]) add(Buffer.alloc(length)); // the structs inside of headers: empty names and values
  const metadata = Buffer.from(METADATA);
  metadata.writeBigInt64LE(BigInt(at), 40);
  metadata.writeBigInt64LE(BigInt(count), 72);
  extents.flat().forEach((value, index) => metadata.writeBigInt64LE(BigInt(value), 88 + 8 * index));
  const nodes = [count, nulls[0], count, nulls[1], count, 0, count, count, 0, 0, 0, 0, 0, 0];
  nodes.forEach((value, index) => metadata.writeBigInt64LE(BigInt(value), 368 + 8 * index));
  return { body: Buffer.concat([metadata, ...buffers]), raw_length: extents.reduce((sum, [, length]) => sum + length, 0) };
}

/** Decode the records of an uncompressed body. The message's flatbuffer gives the location of each buffer. */
export function decodeBody(frame) {
  if (frame.flags & CODECS) throw new Error("the body is compressed: this example supports neither lz4 nor zstd");
  const data = frame.body;
  const length = data.readInt32LE(4), metadata = data.subarray(8, 8 + length), content = data.subarray(8 + length);
  const table = (start) => ({ start, vtable: start - metadata.readInt32LE(start) });
  const find = (t, field) => {
    if (4 + 2 * field >= metadata.readUInt16LE(t.vtable)) return 0;
    const offset = metadata.readUInt16LE(t.vtable + 4 + 2 * field);
    return offset && t.start + offset;
  };
  const follow = (at) => at + metadata.readUInt32LE(at);
  const batch = table(follow(find(table(metadata.readInt32LE(0)), 2)));
  const rows = Number(metadata.readBigInt64LE(find(batch, 0)));
  const first = follow(find(batch, 2)) + 4;
  const buffer = (index) => {
    const start = Number(metadata.readBigInt64LE(first + 16 * index)), size = Number(metadata.readBigInt64LE(first + 16 * index + 8));
    return content.subarray(start, start + size);
  };
  const bytes = (index, row) => {
    const [validity, ends, all] = [buffer(index), buffer(index + 1), buffer(index + 2)];
    if (validity.length && !(validity[row >> 3] & (1 << (row & 7)))) return null;
    return all.subarray(ends.readInt32LE(4 * row), ends.readInt32LE(4 * row + 4));
  };
  const times = buffer(7);
  return Array.from({ length: rows }, (_, row) => (
    { key: bytes(0, row), value: bytes(3, row), timestamp: number(times.readBigInt64LE(8 * row)) }));
}

// ---- messages of the client port without msgpack

/** Return the parts of a submit message. */
export function encodeSubmit(frames) {
  const inline = frames.every((frame) => frame.body.length <= 8192);
  const head = Buffer.alloc(8);
  head.write("S", "latin1");
  head[1] = inline ? 0 : 1;
  head.writeUInt16LE(frames.length, 2);
  const first = [head, ...frames.map(encodeHeader), ...frames.map((frame) => frame.progress)];
  if (!inline) return [Buffer.concat(first), ...frames.map((frame) => frame.body)];
  return [Buffer.concat([...first, ...frames.flatMap((frame) => [frame.body, padding(frame.body.length)])])];
}

/** Decode the rows of a receipts message. */
export function decodeReceipts(data) {
  const count = data.readUInt32LE(4);
  if (data.length !== 8 + 32 * count) throw new Error(`${count} receipts in ${data.length} bytes`);
  return Array.from({ length: count }, (_, row) => {
    const at = 8 + 32 * row;
    return {
      producer: number(data.readBigUInt64LE(at)), first_sequence: number(data.readBigUInt64LE(at + 8)),
      offset: number(data.readBigInt64LE(at + 16)), epoch: data.readUInt32LE(at + 24), count: data.readUInt32LE(at + 28),
    };
  });
}

// ---- files

/** Decode page 0 of a segment. */
export function decodeSegment(data) {
  if (data.toString("latin1", 0, 4) !== "TUTL" || crc32c(data.subarray(0, 48)) !== data.readUInt32LE(48)) throw new Error("not a segment");
  return {
    version: data.readUInt32LE(4), log: data.subarray(8, 24), first: number(data.readBigUInt64LE(24)),
    size: number(data.readBigUInt64LE(32)), chain: data.readUInt32LE(40),
  };
}

/** Decode a row of an index; null if it is incomplete or its CRC is wrong. */
export function decodeRow(data) {
  if (data.length < 96 || crc32c(data.subarray(0, 92)) !== data.readUInt32LE(92)) return null;
  const wide = (at) => number(data.readBigUInt64LE(at)), signed = (at) => number(data.readBigInt64LE(at));
  return {
    position: wide(0), place: wide(8), offset: signed(16), producer: wide(24), first_sequence: wide(32), min_timestamp: signed(40),
    max_timestamp: signed(48), tick: wide(56), view: wide(64), size: data.readUInt32LE(72), count: data.readUInt32LE(76),
    topic: data.readUInt32LE(80), epoch: data.readUInt32LE(84), kind: data[88], flags: data[89], origin: data.readUInt16LE(90),
  };
}
