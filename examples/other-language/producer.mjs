// A producer in JavaScript, written from the page wire.md of the documentation, with Node's standard library only. It uses one connection to one
// gateway. A complete client also fails over to other gateways and sends again, as the section "Fail-over" there describes.

import { randomBytes } from "node:crypto";
import { createConnection } from "node:net";
import { BATCH, decodeReceipts, encodeBody, encodeSubmit, pack, unpack } from "./bytes.mjs";

const MORE = 1, LONG = 2, COMMAND = 4;

/** The greeting of ZMTP 3.1, mechanism NULL. */
export const GREETING = Buffer.concat([
  Buffer.from("ff00000000000000017f0301", "hex"), Buffer.from("NULL".padEnd(20, "\0")), Buffer.alloc(32)]);

/** Encode one frame of ZMTP. */
export function zmtp(data, flags = 0) {
  if (data.length < 256) return Buffer.concat([Buffer.from([flags, data.length]), data]);
  const head = Buffer.alloc(9);
  head[0] = flags | LONG;
  head.writeBigUInt64BE(BigInt(data.length), 1);
  return Buffer.concat([head, data]);
}

const property = (name, value) => {
  const length = Buffer.alloc(4);
  length.writeUInt32BE(value.length);
  return Buffer.concat([Buffer.from([name.length]), Buffer.from(name), length, Buffer.from(value)]);
};

/** The command after the greeting: a DEALER without an identity. */
export const READY = zmtp(Buffer.concat([Buffer.from("\x05READY"), property("Socket-Type", "DEALER"), property("Identity", "")]), COMMAND);

/** Encode a control message. */
export const control = (type, fields) => Buffer.concat([Buffer.from("C"), pack({ type, ...fields })]);

export class Producer {
  /** Connect, and begin an epoch of the producer `name`. */
  static async open(host, port, name) {
    const self = new Producer();
    self.requests = new Map(); // number -> {resolve, reject}
    self.batches = []; // sent and unanswered, in order
    self.received = Buffer.alloc(0);
    self.parts = [];
    self.greeted = false;
    self.topics = new Map();
    self.socket = createConnection({ host, port, noDelay: true });
    self.ended = new Promise((_, reject) => {
      self.end = (error) => {
        reject(error);
        for (const waiting of [...self.requests.values(), ...self.batches]) waiting.reject(error);
        self.socket.destroy();
      };
    });
    self.ended.catch(() => {});
    self.socket.on("error", (error) => self.end(error));
    self.socket.on("close", () => self.end(new Error("the gateway ended the connection")));
    self.socket.on("data", (data) => {
      try {
        self.receive(data);
      } catch (error) {
        self.end(error);
      }
    });
    self.socket.write(Buffer.concat([GREETING, READY]));
    const hello = control("Hello", { protocol: 1, client: "tutti-javascript", session: randomBytes(16) });
    self.welcome = await self.call(0, hello);
    const instance = randomBytes(16);
    for (let epoch = 1; ; ) {
      const answer = await self.request("OpenProducer", { name, instance, epoch });
      if (answer.type === "EpochOpened") {
        Object.assign(self, { number: answer.producer, epoch, sequence: answer.sequence, progress: answer.progress });
        return self;
      }
      epoch = answer.epoch + 1; // EpochFenced: another instance has this epoch
    }
  }

  /** Send a control message, and return its answer. */
  call(request, message) {
    return new Promise((resolve, reject) => {
      this.requests.set(request, { resolve, reject });
      this.socket.write(zmtp(message));
    });
  }

  async request(type, fields) {
    for (;;) {
      const number = (this.last = (this.last ?? 0) + 1);
      const answer = await this.call(number, control(type, { request: number, ...fields }));
      if (answer.type !== "Denied") return answer;
      if (!answer.retry) throw new Error(`${answer.code}: ${answer.reason}`);
      await new Promise((resolve) => setTimeout(resolve, 100)); // a temporary reason: repeat the request
    }
  }

  /** Send records {key, value} as one batch. Returns the offset of the first one when all are durable at every member of the view. */
  async send(topic, records, progress = Buffer.alloc(0)) {
    if (!this.topics.has(topic)) this.topics.set(topic, this.request("OpenTopic", { name: topic }).then((answer) => answer.topic));
    const number = await this.topics.get(topic);
    const stamped = records.map((record) => ({ timestamp: Date.now() * 1000, ...record }));
    const times = stamped.map((record) => record.timestamp);
    const frame = {
      kind: BATCH, producer: this.number, epoch: this.epoch, first_sequence: this.sequence + 1, count: records.length,
      topic: number, min_timestamp: Math.min(...times), max_timestamp: Math.max(...times), progress,
      ...encodeBody(stamped),
    };
    this.sequence += records.length;
    return new Promise((resolve, reject) => {
      this.batches.push({ first: frame.first_sequence, resolve, reject });
      const parts = encodeSubmit([frame]);
      parts.forEach((part, index) => this.socket.write(zmtp(part, index < parts.length - 1 ? MORE : 0)));
    });
  }

  /** Close the connection. */
  async close() {
    await new Promise((resolve) => this.socket.end(zmtp(control("Bye", {})), resolve));
    this.socket.destroy();
  }

  receive(data) {
    this.received = this.received.length ? Buffer.concat([this.received, data]) : data;
    if (!this.greeted) {
      if (this.received.length < 64) return;
      if (this.received[0] !== 0xff || this.received[10] < 3) throw new Error("no gateway has its client port at this address");
      this.greeted = true;
      this.received = this.received.subarray(64);
    }
    for (;;) {
      const [flags, short] = this.received;
      const head = flags & LONG ? 9 : 2;
      if (this.received.length < head) return;
      const length = flags & LONG ? Number(this.received.readBigUInt64BE(1)) : short;
      if (this.received.length < head + length) return;
      const frame = this.received.subarray(head, head + length);
      this.received = this.received.subarray(head + length);
      if (flags & COMMAND) this.command(frame);
      else {
        this.parts.push(frame);
        if (!(flags & MORE)) this.message(this.parts.splice(0));
      }
    }
  }

  command(frame) {
    const name = frame.toString("latin1", 1, 1 + frame[0]);
    if (name === "PING") this.socket.write(zmtp(Buffer.concat([Buffer.from("\x04PONG"), frame.subarray(7)]), COMMAND));
  }

  message([data]) {
    if (data[0] === 0x52) {
      for (const row of decodeReceipts(data)) this.resolve(row, (batch) => batch.resolve(row.offset < 0 ? -1 : row.offset + batch.first - row.first_sequence));
      return;
    }
    const answer = unpack(data.subarray(1));
    if (["Aborted", "Fenced", "Refused", "Expected"].includes(answer.type)) {
      this.end(new Error(`${answer.type} ${answer.reason ?? JSON.stringify(answer)}`)); // a new Producer continues from the progress in the log
      return;
    }
    const request = answer.type === "Welcome" ? 0 : answer.request;
    this.requests.get(request)?.resolve(answer); // a Welcome without a request reports a change of the group
    this.requests.delete(request);
  }

  resolve(row, outcome) {
    if (row.producer !== this.number || row.epoch !== this.epoch) return;
    this.batches = this.batches.filter((batch) => {
      const covered = batch.first >= row.first_sequence && batch.first < row.first_sequence + row.count;
      if (covered) outcome(batch);
      return !covered;
    });
  }
}
