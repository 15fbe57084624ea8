// What an operator can do about a gateway that needs attention.

import { count } from "./format.js";

export const LAG_LATE = 10_000; // positions; a gateway that lags by more does not keep up

const STEPS = {
  minority: () => "It hears no majority. Check the network between its host and the others.",
  joining: () => "Nothing, while its lag shrinks: it joins the view when it has the log.",
  learner: () => "Nothing, while its lag shrinks: it votes when it has the log.",
  leaving: () => "Nothing: it stops when its records are decided. Start it again to bring it back.",
  halted: () => "Read its log, remove the cause, and restart it.",
  unknown: () => "Its process does not answer. Check the load of its host, or restart it.",
};

// Returns text for a member of the group ({name, state, heard_us, lag, reason, address}); empty if the member is well. `decides` is
// true if the gateway of this page has a majority, which changes of the roster need.
export function advice(member) {
  return [member.reason ? `${member.reason.replace(/\.$/, "")}.` : "", step(member)].filter(Boolean).join(" ");
}

function step(member) {
  if (member.state === "silent") {
    if (member.heard_us < 0) return `Start ${member.name}. If it runs, check its address (${member.address}) and the network.`;
    const lost = member.decides ? ` If its disk is lost: tutti members replace ${member.name}` : "";
    return `Start ${member.name} if it is down, else check its network.${lost}`;
  }
  const found = STEPS[member.state]?.() ?? "";
  if (found || member.lag <= LAG_LATE) return found;
  return `It lags by ${count(member.lag)} positions. Its disk, CPU or network is slower than those of the others: check its host.`;
}
