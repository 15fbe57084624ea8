// Send the lines of standard input, and print the offset of each: node send.mjs HOST PORT TOPIC PRODUCER
// Started again under the same name it goes on behind the last line that is in the log: the number of lines is its progress.

import { createInterface } from "node:readline";
import { Producer } from "./producer.mjs";

const [host, port, topic, name] = process.argv.slice(2);
if (!name) {
  console.error("node send.mjs HOST PORT TOPIC PRODUCER < FILE");
  process.exit(2);
}
const producer = await Producer.open(host, Number(port), name);
const there = Number(producer.progress.toString() || 0);
let count = 0;
const waiting = [];
for await (const line of createInterface({ input: process.stdin })) {
  count += 1;
  if (count <= there) continue;
  waiting.push(producer.send(topic, [{ key: null, value: Buffer.from(line) }], Buffer.from(String(count))));
  if (waiting.length >= 1000) await waiting[waiting.length - 1000]; // so many wait for their receipts at most
}
for (const offset of waiting) console.log(await offset);
await producer.close();
