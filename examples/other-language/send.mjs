// Send the lines of standard input, and print the offset of each: node send.mjs HOST PORT TOPIC PRODUCER
// A restart under the same name continues after the last line in the log: the progress is the number of lines.

import { createInterface } from "node:readline";
import { Producer } from "./producer.mjs";

const [host, port, topic, name] = process.argv.slice(2);
if (!name) {
  console.error("node send.mjs HOST PORT TOPIC PRODUCER < FILE");
  process.exit(2);
}
const producer = await Producer.open(host, Number(port), name);
const committed = Number(producer.progress.toString() || 0);
let count = 0;
const waiting = [];
for await (const line of createInterface({ input: process.stdin })) {
  count += 1;
  if (count <= committed) continue;
  waiting.push(producer.send(topic, [{ key: null, value: Buffer.from(line) }], Buffer.from(String(count))));
  if (waiting.length >= 1000) await waiting[waiting.length - 1000]; // at most 1000 lines wait for their receipts
}
for (const offset of waiting) console.log(await offset);
await producer.close();
