// Asks again for what is marked as live, and keeps what the reader has opened, ticked and scrolled to.
"use strict";
const EVERY = 1500;
const shown = new WeakMap();

function keep(part) {
  const open = [...part.querySelectorAll("details")].map((one) => one.open);
  const ticked = new Set([...part.querySelectorAll("input:checked")].map((one) => one.value));
  const scrolled = [...part.querySelectorAll(".log, .scroll")].map((one) => [one.scrollLeft,
    one.scrollTop + one.clientHeight >= one.scrollHeight - 4 ? Infinity : one.scrollTop]);
  const focus = part.contains(document.activeElement) ? document.activeElement.getAttribute("data-key") : null;
  return () => {
    part.querySelectorAll("details").forEach((one, place) => { one.open = open[place] ?? one.open; });
    part.querySelectorAll("input[type=checkbox]").forEach((one) => { one.checked = ticked.has(one.value); });
    part.querySelectorAll(".log, .scroll").forEach((one, place) => {
      const [left, top] = scrolled[place] ?? [0, Infinity];
      one.scrollLeft = left;
      one.scrollTop = Math.min(top, one.scrollHeight);
    });
    if (focus !== null) {
      [...part.querySelectorAll("[data-key]")].find((one) => one.getAttribute("data-key") === focus)?.focus();
    }
  };
}

async function refresh(part) {
  const answer = await fetch(part.dataset.live + location.search, { cache: "no-store" });
  if (!answer.ok) throw new Error(answer.status);
  const text = await answer.text();
  if (shown.get(part) === text) return;
  const back = keep(part);
  part.innerHTML = text;  // made by the board, which escapes all that runs say
  back();
  shown.set(part, text);
}

async function look() {
  try {
    if (!document.hidden) await Promise.all([...document.querySelectorAll("[data-live]")].map(refresh));
    delete document.body.dataset.lost;
  } catch {
    document.body.dataset.lost = "1";
  }
  setTimeout(look, EVERY);
}

for (const search of document.querySelectorAll("[data-filter]")) {
  search.hidden = false;
  search.addEventListener("input", () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const group of document.querySelectorAll("details.arguments")) {
      let found = 0;
      for (const field of group.querySelectorAll("label")) {
        const text = field.textContent.toLowerCase();
        field.hidden = !words.every((word) => text.includes(word));
        found += field.hidden ? 0 : 1;
      }
      group.hidden = found === 0;
      if (words.length) group.open = found > 0 && found < 40;
    }
  });
}
if (document.querySelector("[data-live]")) setTimeout(look, EVERY);
