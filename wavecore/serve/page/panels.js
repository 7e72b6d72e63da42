// What is shown beside the picture: updates with their parts, the histogram, counters.

const PARTS = [
  ["wait", "R"],
  ["generation", "C"],
  ["alignment", "Q"],
  ["transport", "transport"],
];
const BINS = [50, 100, 150, 200, 250, 300, 400, 500, 750, 1000, Infinity]; // milliseconds

const element = (tag, name, text) => {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
};

/** The latest updates, each with a bar of its parts. */
export function showUpdates(list, entries) {
  const longest = Math.max(500, ...entries.map((entry) => entry.total ?? 0));
  list.replaceChildren(
    ...entries.map((entry) => {
      const item = element("li");
      item.append(element("span", "prompt", entry.prompt));
      if (entry.total === undefined) {
        item.append(element("span", "outcome", entry.outcome));
        return item;
      }
      item.append(element("span", "total", `${Math.round(entry.total)} ms`));
      const bar = element("div", "bar");
      const parts = [];
      for (const [name, label] of PARTS) {
        const part = element("span", name);
        part.style.width = `${(100 * Math.max(0, entry[name])) / longest}%`;
        bar.append(part);
        parts.push(`${label} ${Math.round(entry[name])}`);
      }
      bar.title = parts.join(" · ");
      item.append(bar, element("span", "parts", parts.join(" · ")));
      return item;
    }),
  );
}

/** A latency histogram of bars. */
export class Histogram {
  constructor(holder, summary) {
    this.holder = holder;
    this.summary = summary;
    this.values = [];
  }

  add(value) {
    this.values.push(value);
    if (this.values.length > 1000) this.values.shift();
    const counts = BINS.map(() => 0);
    for (const v of this.values) counts[BINS.findIndex((edge) => v <= edge)]++;
    const most = Math.max(...counts);
    this.holder.replaceChildren(
      ...counts.map((count, index) => {
        const bar = element("div", "bin");
        const fill = element("div", "fill");
        fill.style.height = `${(100 * count) / most}%`;
        const edge = BINS[index];
        bar.title = `${edge === Infinity ? `above ${BINS[index - 1]}` : `up to ${edge}`} ms: ${count}`;
        bar.append(fill, element("span", "", edge === Infinity ? "…" : String(edge)));
        return bar;
      }),
    );
    const sorted = [...this.values].sort((a, b) => a - b);
    const at = (share) => Math.round(sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))]);
    this.summary.textContent = `${sorted.length} updates: p50 ${at(0.5)} ms, p95 ${at(0.95)} ms`;
  }
}

/** Fills every `[data-counter]` from an object of values. */
export function showCounters(values) {
  for (const output of document.querySelectorAll("[data-counter]")) {
    const value = String(values[output.dataset.counter] ?? output.textContent);
    if (value !== output.textContent) output.textContent = value; // a write costs a layout
  }
}
