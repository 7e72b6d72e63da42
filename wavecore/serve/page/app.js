// The page: wires the stream to the picture, the timeline, the panels and the keys.

import { Source, openCamera, openFile } from "./camera.js";
import { Connection, Refusal } from "./connection.js";
import { FrameDecoder, bestCodec } from "./decoder.js";
import { Histogram, showCounters, showUpdates } from "./panels.js";
import { PlaybackController, Updates } from "./playback.js";
import { Timeline } from "./timeline.js";

const $ = (id) => document.getElementById(id);
const token = new URLSearchParams(location.hash.slice(1)).get("token");
const screen = $("screen").getContext("2d");

/** One stream, from start to end. */
class Viewer {
  constructor() {
    this.updates = new Updates();
    this.transports = []; // ready to shown, in milliseconds
    this.pending = { received: -1, displayed: [], skipped: [] };
    this.acknowledged = -1;
    this.over = false;
    this.connection = new Connection(
      `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/v1/stream`,
      token,
      {
        frame: (frame) => this.decoder.push(frame),
        record: (record) => this.record(record),
        state: (state, now) => this.stateChanged(state, now),
        error: (error) => say(`${error.code}: ${error.message}`, true),
        ended: ({ reason }) => (this.reason = reason),
        lost: () => say("connection lost, coming back", true),
        back: (started) => this.begin(started),
        closed: (code, reason) => this.end(this.reason ?? reason ?? String(code)),
      },
    );
    this.playback = new PlaybackController(this.connection.clock);
  }

  async start(prompt, pressed) {
    await this.connection.open();
    const source = $("source").value;
    const codec = new URLSearchParams(location.search).get("codec") ?? (await bestCodec());
    const started = await this.connection.start({
      prompt,
      codec,
      seed: Number($("seed").value),
      steps: Number($("steps").value),
      rounds: $("rounds").value || null,
      placement: $("placement").value,
      control: source === "prompt" ? $("control").value || null : "free",
      source: source === "prompt" ? "prompt" : "images",
    });
    this.pressed = pressed;
    this.begin(started);
    if (source !== "prompt") await this.feed(source);
  }

  async feed(source) {
    const input = $("input");
    input.hidden = false;
    if (source === "camera") await openCamera(input);
    else await openFile(input, $("file").files[0]);
    const { size, fps } = this.started;
    this.source = new Source(input, size, fps, (data) => this.connection.send({ type: "image", data }));
  }

  /** A session runs, new or found again. */
  begin(started) {
    this.started = started;
    this.decoder?.close();
    for (const { image } of this.playback.clear()) image.close();
    this.pending = { received: -1, displayed: [], skipped: [] };
    this.acknowledged = -1;
    this.decoder = new FrameDecoder(
      started,
      (header, image) => this.decoded(header, image),
      (error, number) => {
        this.pending.received = number;
        say(`decoder: ${error.message}`, true);
      },
    );
    [$("screen").width, $("screen").height] = started.size;
    say(`${started.control}, ${started.size.join("×")}, ${started.fps} fps, ${started.codec}`);
    enable(true);
    $("go").textContent = "Update";
  }

  /** A frame counts as received once it is decoded: the server then sends no more than can be decoded. */
  decoded(header, image) {
    this.pending.received = header.number;
    this.playback.push({ ...header, image, data: null }, performance.now());
  }

  /** Stops; what is under way is not shown any more, so that both sides have counted the same frames. */
  stop() {
    this.stopping = true;
    return this.connection.stop();
  }

  /** Called at every animation frame. */
  look(now) {
    if (this.stopping) return;
    const { show, skipped } = this.playback.take(now);
    for (const { number, image } of skipped) {
      image.close();
      this.pending.skipped.push(number);
    }
    if (show) {
      screen.drawImage(show.image, 0, 0);
      show.image.close();
      const shown = performance.now();
      this.pending.displayed.push([show.number, this.connection.clock.toServer(shown)]);
      if (!show.replay) {
        this.updates.frame(show.version, shown);
        if (show.frame === 0) {
          this.transports.push(shown - this.connection.clock.toPage(show.due));
          if (this.transports.length > 1000) this.transports.shift();
        }
      }
    }
    const { received, displayed, skipped: late } = this.pending;
    if (received > this.acknowledged || displayed.length || late.length) {
      this.connection.send({ type: "ack", received, displayed, skipped: late });
      this.acknowledged = received;
      this.pending = { received, displayed: [], skipped: [] };
    }
    timeline.draw(now);
  }

  async update(prompt, pressed) {
    const transition = Number($("transition").value);
    await this.connection.request("update", { prompt, transition }, (id) =>
      this.updates.sent(id, prompt, pressed),
    );
  }

  record(record) {
    const entry = this.updates.record(record, this.connection.clock);
    if (!entry) return;
    showUpdates($("updates"), this.updates.list);
    if (entry.total !== undefined) histogram.add(entry.total);
  }

  stateChanged(state, now) {
    this.state = state;
    timeline.update(state, now);
    const label = state.paused ? "Resume" : "Pause";
    if ($("pause").textContent !== label) $("pause").textContent = label;
    const middle = [...this.transports].sort((a, b) => a - b)[this.transports.length >> 1];
    showCounters({
      ...state.counters,
      displayed: this.playback.displayed,
      skipped: this.playback.skipped,
      amplification: state.amplification.toFixed(2),
      waste: state.waste.toFixed(2),
      load: state.load.toFixed(2),
      transport: middle === undefined ? "–" : `${Math.round(middle)} ms`,
    });
  }

  seek(position) {
    const { retained, commit } = this.state;
    const wanted = Math.min(Math.max(position, retained), commit[2]);
    return this.connection.request("seek", { position: wanted });
  }

  step(seconds) {
    const groups = Math.max(1, Math.round((Math.abs(seconds) * this.started.fps) / this.started.group));
    return this.seek(this.state.cursor + Math.sign(seconds) * groups);
  }

  end(reason) {
    if (this.over) return;
    this.over = true;
    this.source?.stop();
    this.decoder?.close();
    for (const { image } of this.playback.clear()) image.close();
    recorder?.stop();
    enable(false);
    $("input").hidden = true;
    $("download").disabled = !this.started;
    $("go").textContent = "Start";
    say(`ended: ${reason}`, reason !== "stopped");
    if (viewer === this) viewer = null;
    last = this;
  }
}

let viewer = null; // the stream that runs
let last = null; // the one before it, for its recording
let recorder = null;
const timeline = new Timeline($("timeline"), $("timeline-text"), (position) => attempt(viewer?.seek(position)));
const histogram = new Histogram($("histogram"), $("histogram-text"));
globalThis.wavecore = { get viewer() { return viewer ?? last; }, histogram }; // for those who look behind it

function say(text, bad = false) {
  $("status").textContent = text;
  $("status").classList.toggle("bad", bad);
}

function enable(on) {
  for (const id of ["pause", "back", "forward", "stop", "record", "download"]) $(id).disabled = !on;
}

/** Waits for a request and shows why it was refused. */
async function attempt(promise) {
  try {
    await promise;
  } catch (error) {
    if (error instanceof Refusal && error.retryAfter) {
      say(`${error.message}: try again in ${Math.ceil(error.retryAfter)} s`, true);
    } else say(error.message, true);
  }
}

async function submit(pressed) {
  const prompt = $("prompt").value;
  if (viewer) return viewer.update(prompt, pressed);
  say("starting");
  viewer = new Viewer();
  try {
    await viewer.start(prompt, pressed);
  } catch (error) {
    viewer?.end(error.message);
    throw error;
  }
}

async function download() {
  const { recording } = (viewer ?? last).started;
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const response = await fetch(recording, { headers });
  if (!response.ok) throw new Error("there is no recording yet");
  save(await response.blob(), "wavecore.mp4");
}

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Records the canvas in the browser, between two presses of the button. */
function record() {
  if (recorder) return recorder.stop();
  const parts = [];
  const made = new MediaRecorder($("screen").captureStream());
  made.ondataavailable = ({ data }) => parts.push(data);
  made.onstop = () => {
    recorder = null;
    $("record").setAttribute("aria-pressed", "false");
    save(new Blob(parts, { type: made.mimeType }), "wavecore-take.webm");
  };
  recorder = made;
  made.start();
  $("record").setAttribute("aria-pressed", "true");
}

const pause = () => viewer?.connection.request(viewer.state?.paused ? "resume" : "pause");

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(submit(event.timeStamp));
});
$("pause").onclick = () => attempt(pause());
$("back").onclick = () => attempt(viewer?.step(-1));
$("forward").onclick = () => attempt(viewer?.step(1));
$("stop").onclick = () => attempt(viewer?.stop());
$("record").onclick = record;
$("download").onclick = () => attempt(download());
$("source").onchange = () => ($("file").disabled = $("source").value !== "file");

const KEYS = {
  "/": () => $("prompt").select(),
  " ": () => attempt(pause()),
  ArrowLeft: () => attempt(viewer?.step(-1)),
  ArrowRight: () => attempt(viewer?.step(1)),
  r: () => $("record").click(),
  d: () => $("download").click(),
};
document.addEventListener("keydown", (event) => {
  const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName);
  if (event.key === "Escape") event.target.blur();
  else if (!typing && event.target.tagName !== "BUTTON" && !event.ctrlKey && !event.metaKey && KEYS[event.key]) {
    event.preventDefault();
    KEYS[event.key]();
  }
});

async function ready() {
  const response = await fetch("/readyz");
  if (response.ok) return say("ready");
  const { status, error } = await response.json();
  say(error ?? status, Boolean(error));
  if (status === "loading") setTimeout(() => attempt(ready()), 500);
}

const tick = (now) => {
  viewer?.look(now);
  requestAnimationFrame(tick);
};
requestAnimationFrame(tick);
attempt(ready());
