// The strip of positions around the playhead: played, committed, locked, replaceable, invalidated.

const BEHIND = 16;
const AHEAD = 32;
const FADE = 1500; // milliseconds that an invalidated position stays visible
const VERSIONS = 6; // colours

/** What a position is, given the state of the stream. */
export function kind(position, { cursor, commit: [irrevocable, locked, replaceable] }) {
  if (position < cursor) return "played";
  if (position < irrevocable) return "committed";
  if (position < locked) return "locked";
  return position < replaceable ? "replaceable" : "empty";
}

/** Draws the strip; a click is answered with `seek(position)`. */
export class Timeline {
  constructor(canvas, summary, seek) {
    this.canvas = canvas;
    this.summary = summary;
    this.state = null;
    this.invalid = new Map(); // position: until when it is shown
    this.stale = false; // something to draw
    this.colours = new Map();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.colours.clear());
    new ResizeObserver(() => (this.stale = true)).observe(canvas);
    canvas.addEventListener("click", ({ offsetX }) => {
      if (this.state) seek(this.first + Math.floor((offsetX / canvas.clientWidth) * (BEHIND + AHEAD)));
    });
  }

  get first() {
    return Math.max(0, this.state.cursor - BEHIND);
  }

  update(state, now) {
    this.state = state;
    this.stale = true;
    for (const [first, end] of state.invalidated) {
      for (let p = first; p < end && p < first + 256; p++) this.invalid.set(p, now + FADE);
    }
    const [irrevocable, locked, replaceable] = state.commit;
    this.summary.textContent =
      `position ${state.cursor}; committed to ${irrevocable}, locked to ${locked}, ` +
      `replaceable to ${replaceable}`;
  }

  colour(name) {
    if (!this.colours.has(name)) {
      this.colours.set(name, getComputedStyle(this.canvas).getPropertyValue(`--${name}`));
    }
    return this.colours.get(name);
  }

  /** Called at every animation frame; draws when something has changed. */
  draw(now) {
    const { canvas, state } = this;
    if (!state || !(this.stale || this.invalid.size)) return;
    this.stale = false;
    const scale = devicePixelRatio || 1;
    const width = Math.round(canvas.clientWidth * scale);
    const height = Math.round(canvas.clientHeight * scale);
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, width, height);
    const step = width / (BEHIND + AHEAD);
    const gap = Math.max(1, scale);
    const edge = 5 * scale;
    for (let i = 0; i < BEHIND + AHEAD; i++) {
      const position = this.first + i;
      context.fillStyle = this.colour(kind(position, state));
      context.fillRect(i * step, 0, step - gap, height - edge - gap);
      const until = this.invalid.get(position);
      if (until > now) {
        context.globalAlpha = (until - now) / FADE;
        context.fillStyle = this.colour("invalidated");
        context.fillRect(i * step, 0, step - gap, height - edge - gap);
        context.globalAlpha = 1;
      }
    }
    for (const [position, until] of this.invalid) if (until <= now) this.invalid.delete(position);
    for (const [first, end, version] of state.versions) {
      const from = Math.max(first, this.first) - this.first;
      const to = Math.min(end - this.first, BEHIND + AHEAD);
      if (to <= from) continue;
      context.fillStyle = this.colour(`version-${version % VERSIONS}`);
      context.fillRect(from * step, height - edge, (to - from) * step - gap, edge);
    }
    context.fillStyle = this.colour("playhead");
    context.fillRect((state.cursor - this.first) * step - 1.5 * scale, 0, 2 * scale, height);
  }
}
