// The page's logic without a page: `node --test tests/serve/test_page.mjs`.

import assert from "node:assert/strict";
import test from "node:test";

import { decode, encode } from "../../wavecore/serve/page/msgpack.js";
import { PlaybackController, ServerClock, Updates } from "../../wavecore/serve/page/playback.js";
import { kind } from "../../wavecore/serve/page/timeline.js";

const MILLISECONDS = { toPage: (due) => due };

const group = (first, due, count = 4, spacing = 62.5) =>
  Array.from({ length: count }, (_, i) => ({ number: first + i, frame: i, due: due + i * spacing }));

test("frames of a group are shown at their times, each once", () => {
  const playback = new PlaybackController(MILLISECONDS);
  for (const frame of group(0, 100)) playback.push(frame, 100);
  const shown = [];
  for (let now = 0; now < 500; now += 1000 / 60) {
    const { show, skipped } = playback.take(now);
    assert.deepEqual(skipped, []);
    if (show) shown.push([show.number, now]);
  }
  assert.deepEqual(shown.map(([number]) => number), [0, 1, 2, 3]);
  shown.forEach(([number, now]) => assert.ok(Math.abs(now - (100 + 62.5 * number)) <= 1000 / 60));
  assert.equal(playback.displayed, 4);
});

test("a frame that a later one overtakes is skipped, never shown out of order", () => {
  const playback = new PlaybackController(MILLISECONDS);
  const [a, b, c] = group(0, 0, 3);
  playback.push(c, 0);
  playback.push(a, 0);
  playback.push(b, 0);
  const { show, skipped } = playback.take(1000);
  assert.equal(show.number, 2);
  assert.deepEqual(skipped.map((f) => f.number), [0, 1]);
  assert.equal(playback.take(2000).show, null);
  assert.deepEqual([playback.displayed, playback.skipped], [1, 2]);
});

test("playback is held back until nine groups of ten come in time, and comes forward again", () => {
  const playback = new PlaybackController(MILLISECONDS);
  for (let i = 0; i < 32; i++) {
    playback.push({ number: i, frame: 0, due: 250 * i }, 250 * i + (i % 10 === 9 ? 150 : 30));
    playback.take(1e9);
  }
  assert.equal(playback.delay, 30);
  for (let i = 32; i < 200; i++) {
    playback.push({ number: i, frame: 0, due: 250 * i }, 250 * i + 5);
    playback.take(1e9);
  }
  assert.equal(playback.delay, 5);
});

test("playback is never held back by more than its limit", () => {
  const playback = new PlaybackController(MILLISECONDS);
  playback.push({ number: 0, frame: 0, due: 0 }, 60_000);
  assert.equal(playback.delay, 200);
});

test("frames that wait follow the clock when it is set right", () => {
  const clock = new ServerClock();
  const playback = new PlaybackController(clock);
  clock.add(0, 60_000, 10); // a bad start: off by 30 s
  playback.push({ number: 0, frame: 0, due: 10 }, 60_000);
  assert.equal(playback.take(20_000).show, null);
  clock.add(20_000, 20_002, 10.001);
  assert.equal(playback.take(20_300).show.number, 0);
});

test("clear gives back what was waiting", () => {
  const playback = new PlaybackController(MILLISECONDS);
  for (const frame of group(0, 100)) playback.push(frame, 100);
  assert.equal(playback.clear().length, 4);
  assert.equal(playback.take(1e9).show, null);
});

test("the clock follows the ping that came back soonest", () => {
  const clock = new ServerClock();
  clock.add(1000, 1100, 5); // slow
  clock.add(2000, 2002, 6.001); // at 2001 the server says 6001 ms
  assert.equal(clock.toPage(6.001), 2001);
  assert.equal(clock.toServer(clock.toPage(7.25)), 7.25);
});

test("the parts of an update add up to what the page measured", () => {
  const clock = new ServerClock();
  clock.add(0, 2, 10.001); // page 1 ms = server 10001 ms
  const updates = new Updates();
  updates.sent(7, "a blue star", 100);
  updates.frame(0, 90);
  updates.frame(1, 345);
  updates.frame(1, 400);
  const record = {
    update: 7, version: 1, outcome: "displayed", shown: null,
    arrival: 10.102, start: 10.11, ready: 10.2, display: 10.33, wait: 0.008, generation: 0.09, alignment: 0.13,
  };
  assert.equal(updates.record(record, clock), null, "not before the server knows that it was shown");
  const entry = updates.record({ ...record, shown: 10.345 }, clock);
  assert.equal(entry.total, 245);
  const sum = entry.wait + entry.generation + entry.alignment + entry.transport;
  assert.ok(Math.abs(sum - entry.total) < 1e-6, String(sum));
  assert.equal(updates.record({ ...record, shown: 10.345 }, clock), null, "once");
});

test("an update that came to nothing is listed with its outcome", () => {
  const updates = new Updates();
  updates.sent(1, "x", 0);
  const entry = updates.record({ update: 1, version: 1, outcome: "superseded" }, new ServerClock());
  assert.deepEqual([entry.outcome, entry.total], ["superseded", undefined]);
});

test("positions are what the horizon says", () => {
  const state = { cursor: 4, commit: [5, 7, 9] };
  const kinds = [3, 4, 5, 6, 7, 8, 9].map((p) => kind(p, state));
  const expected = ["played", "committed", "locked", "locked", "replaceable", "replaceable", "empty"];
  assert.deepEqual(kinds, expected);
});

test("messages survive encoding", () => {
  const bytes = new Uint8Array([0, 1, 255]);
  const message = {
    type: "update", id: 2 ** 40, negative: -7, small: -200, float: 1.5, none: null, yes: true, no: false,
    prompt: "ein 🟦 שלום", list: [1, [2, 3]], data: bytes, long: "x".repeat(70_000), many: Array(20).fill(1),
  };
  assert.deepEqual(decode(encode(message)), message);
  assert.throws(() => decode(encode(message).subarray(0, 20)), RangeError);
  assert.throws(() => decode(new Uint8Array([1, 2])), RangeError);
});
