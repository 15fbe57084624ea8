// A producer in JavaScript, written from docs/wire.md alone: one connection to one gateway, nothing but Node's own library.
// What a whole client does beyond it (other gateways when this one goes, sending again) is told there under "Fail-over".

import { randomBytes } from "node:crypto";
import { createConnection } from "node:net";
import { BATCH, decodeReceipts, encodeBody, encodeSubmit, pack, unpack } from "./bytes.mjs";

const MORE = 1, LONG = 2, COMMAND = 4;

/** The greeting of ZMTP 3.1, mechanism NULL. */
export const GREETING = Buffer.concat([
  Buffer.from("ff00000000000000017f0301", "hex"), Buffer.from("NULL".padEnd(20, "\0")), Buffer.alloc(32)]);

/** One frame of ZMTP. */
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

/** The command behind the greeting: a DEALER that does not care what it is called. */
export const READY = zmtp(Buffer.concat([Buffer.from("\x05READY"), property("Socket-Type", "DEALER"), property("Identity", "")]), COMMAND);

/** A control message. */
export const control = (type, fields) => Buffer.concat([Buffer.from("C"), pack({ type, ...fields })]);

export class Producer {
  /** Connect, and begin an epoch of the producer `name`. */
  static async open(host, port, name) {
    const self = new Producer();
    self.requests = new Map(); // number -> {resolve, reject}
    self.batches = []; // sent and not answered, in order
    self.came = Buffer.alloc(0);
    self.parts = [];
    self.greeted = self.isReady = false;
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
        self.take(data);
      } catch (error) {
        self.end(error);
      }
    });
    self.socket.write(Buffer.concat([GREETING, READY]));
    const hello = control("Hello", { protocol: 1, client: "tutti-javascript", session: randomBytes(16) });
    self.welcome = await self.ask(0, hello);
    const instance = randomBytes(16);
    for (let epoch = 1; ; ) {
      const answer = await self.request("OpenProducer", { name, instance, epoch });
      if (answer.type === "EpochOpened") {
        Object.assign(self, { number: answer.producer, epoch, sequence: answer.sequence, progress: answer.progress });
        return self;
      }
      epoch = answer.epoch + 1; // EpochFenced: an older instance has that one; the next is ours
    }
  }

  /** What is said and its answer. */
  ask(request, message) {
    return new Promise((resolve, reject) => {
      this.requests.set(request, { resolve, reject });
      this.socket.write(zmtp(message));
    });
  }

  async request(type, fields) {
    for (;;) {
      const number = (this.last = (this.last ?? 0) + 1);
      const answer = await this.ask(number, control(type, { request: number, ...fields }));
      if (answer.type !== "Denied") return answer;
      if (!answer.retry) throw new Error(`${answer.code}: ${answer.reason}`);
      await new Promise((resolve) => setTimeout(resolve, 100)); // it passes: ask again
    }
  }

  /** Send records {key, value} as one batch; the offset of the first, once all are durable at every gateway of the view. */
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
      parts.forEach((part, place) => this.socket.write(zmtp(part, place < parts.length - 1 ? MORE : 0)));
    });
  }

  /** Say goodbye. */
  async close() {
    await new Promise((resolve) => this.socket.end(zmtp(control("Bye", {})), resolve));
    this.socket.destroy();
  }

  take(data) {
    this.came = this.came.length ? Buffer.concat([this.came, data]) : data;
    if (!this.greeted) {
      if (this.came.length < 64) return;
      if (this.came[0] !== 0xff || this.came[10] < 3) throw new Error("who listens there is no gateway's client port");
      this.greeted = true;
      this.came = this.came.subarray(64);
    }
    for (;;) {
      const [flags, short] = this.came;
      const head = flags & LONG ? 9 : 2;
      if (this.came.length < head) return;
      const length = flags & LONG ? Number(this.came.readBigUInt64BE(1)) : short;
      if (this.came.length < head + length) return;
      const frame = this.came.subarray(head, head + length);
      this.came = this.came.subarray(head + length);
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
      for (const row of decodeReceipts(data)) this.settle(row, (batch) => batch.resolve(row.offset < 0 ? -1 : row.offset + batch.first - row.first_sequence));
      return;
    }
    const answer = unpack(data.subarray(1));
    if (["Aborted", "Fenced", "Refused", "Expected"].includes(answer.type)) {
      this.end(new Error(`${answer.type} ${answer.reason ?? JSON.stringify(answer)}`)); // start again: resume tells where to go on
      return;
    }
    const request = answer.type === "Welcome" ? 0 : answer.request;
    this.requests.get(request)?.resolve(answer); // a Welcome that nobody asked for says that the group changed
    this.requests.delete(request);
  }

  settle(row, outcome) {
    if (row.producer !== this.number || row.epoch !== this.epoch) return;
    this.batches = this.batches.filter((batch) => {
      const its = batch.first >= row.first_sequence && batch.first < row.first_sequence + row.count;
      if (its) outcome(batch);
      return !its;
    });
  }
}
