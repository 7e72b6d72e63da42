// Which frame to show when. Pure: time comes in as a number, nothing here touches the page.

const GROUPS = 32; // whose lateness is remembered
const QUANTILE = 0.9;
const MOST = 200; // milliseconds that playback is held back at most
const RELAX = 0.5; // milliseconds a group by which it comes forward again

/**
 * Plays frames at the times the server gave them, held back by as little as lets nine groups of ten be decoded
 * in time. A frame that a later one overtakes is skipped, never shown out of order. `clock` has `toPage`.
 */
export class PlaybackController {
  constructor(clock, refresh = 1000 / 60) {
    this.clock = clock;
    this.refresh = refresh; // milliseconds between looks
    this.clear();
    this.displayed = 0;
    this.skipped = 0;
  }

  /** Forgets waiting frames, which are returned, and what was learnt. */
  clear() {
    const waiting = this.waiting ?? [];
    this.waiting = [];
    this.lateness = [];
    this.delay = 0;
    this.group = null;
    return waiting;
  }

  /** Adds a decoded frame `{number, due, frame, ...}`; `due` is in the server's seconds. */
  push(frame, now) {
    if (frame.frame === 0) this.learn(now - this.clock.toPage(frame.due));
    let at = this.waiting.length;
    while (at > 0 && this.waiting[at - 1].number > frame.number) at--;
    this.waiting.splice(at, 0, frame);
  }

  /** Takes note of how late the first frame of a group was decoded. */
  learn(late) {
    this.lateness.push(late);
    if (this.lateness.length > GROUPS) this.lateness.shift();
    const sorted = [...this.lateness].sort((a, b) => a - b);
    const wanted = sorted[Math.ceil(QUANTILE * sorted.length) - 1];
    const bounded = Math.min(Math.max(wanted, 0), MOST);
    this.delay = bounded > this.delay ? bounded : Math.max(bounded, this.delay - RELAX);
  }

  /** When a frame is to be shown, in milliseconds. */
  time(frame) {
    return this.clock.toPage(frame.due) + this.delay;
  }

  /**
   * The frame to show at `now`, if there is a new one, and those that were overtaken:
   * `{show: frame | null, skipped: [frame, ...]}`.
   */
  take(now) {
    const skipped = [];
    let show = null;
    // Half a refresh ahead: the nearest look, not the next one.
    while (this.waiting.length && this.time(this.waiting[0]) <= now + this.refresh / 2) {
      if (show) skipped.push(show);
      show = this.waiting.shift();
    }
    this.skipped += skipped.length;
    if (show) this.displayed += 1;
    return { show, skipped };
  }
}

/** Turns the server's seconds into the page's milliseconds, from the ping that came back soonest. */
export class ServerClock {
  constructor() {
    this.samples = [];
  }

  /** Adds a ping sent and answered at the page's milliseconds, with the server's seconds in between. */
  add(sent, answered, server) {
    this.samples.push({ trip: answered - sent, offset: (sent + answered) / 2 - server * 1000 });
    if (this.samples.length > 20) this.samples.shift();
  }

  get offset() {
    return this.samples.reduce((best, s) => (s.trip < best.trip ? s : best), { trip: Infinity, offset: 0 }).offset;
  }

  toPage(seconds) {
    return seconds * 1000 + this.offset;
  }

  toServer(milliseconds) {
    return (milliseconds - this.offset) / 1000;
  }
}

/** Joins what the page and the server know of an update into its parts, in milliseconds. */
export class Updates {
  constructor(limit = 8) {
    this.limit = limit;
    this.open = new Map(); // by request: {prompt, pressed}
    this.shown = new Map(); // by version: when its first pixel was shown
    this.list = []; // latest first
  }

  /** An update was sent under `id`, its key pressed at the page's `pressed`. */
  sent(id, prompt, pressed) {
    this.open.set(id, { prompt, pressed });
  }

  /** A frame was shown; only the first of a version matters. */
  frame(version, now) {
    if (this.shown.has(version)) return;
    this.shown.set(version, now);
    if (this.shown.size > 64) this.shown.delete(this.shown.keys().next().value);
  }

  /** A record came. Returns the entry once all of it is known: {wait, generation, alignment, transport, total}. */
  record(record, clock) {
    const asked = this.open.get(record.update);
    if (!asked) return null;
    if (record.outcome !== "displayed") {
      this.open.delete(record.update);
      return this.add({ prompt: asked.prompt, outcome: record.outcome, version: record.version });
    }
    const shown = this.shown.get(record.version);
    if (shown === undefined || record.shown === null) return null;
    this.open.delete(record.update);
    const up = clock.toPage(record.arrival) - asked.pressed;
    const down = shown - clock.toPage(record.display);
    return this.add({
      prompt: asked.prompt,
      outcome: record.outcome,
      version: record.version,
      wait: record.wait * 1000,
      generation: record.generation * 1000,
      alignment: record.alignment * 1000,
      transport: up + down,
      total: shown - asked.pressed,
    });
  }

  add(entry) {
    this.list.unshift(entry);
    this.list.length = Math.min(this.list.length, this.limit);
    return entry;
  }
}
