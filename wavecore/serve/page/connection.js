// One WebSocket: requests with replies, clock, and the way back after a lost connection.

import { decode, encode } from "./msgpack.js";
import { ServerClock } from "./playback.js";

export const PROTOCOL = 1;
const PING = 5000; // milliseconds between pings
const RETRIES = [250, 500, 1000, 2000, 4000, 8000]; // together less than the server keeps a session

/** A reply that is an error, with the server's code. */
export class Refusal extends Error {
  constructor({ code, message, retry_after }) {
    super(message);
    this.code = code;
    this.retryAfter = retry_after;
  }
}

/**
 * Speaks the protocol of docs/serve.md. `handlers` has functions by message type (frame, record, state, ended,
 * error), and `lost`, `back` and `closed`.
 */
export class Connection {
  constructor(url, token, handlers) {
    this.url = url;
    this.token = token;
    this.handlers = handlers;
    this.clock = new ServerClock();
    this.requests = new Map();
    this.id = 0;
    this.session = null;
    this.over = false;
  }

  open() {
    return new Promise((resolve, reject) => {
      // Where several servers share an address, a session lives on the one that its token names.
      const worker = this.session?.split(".")[0];
      const socket = new WebSocket(worker ? `${this.url}?worker=${encodeURIComponent(worker)}` : this.url);
      socket.binaryType = "arraybuffer";
      socket.onopen = () => {
        this.socket = socket;
        this.timer = setInterval(() => this.ping(), PING);
        // Several at once: the first ones of a connection come back late.
        Promise.all([this.ping(), this.ping(), this.ping()]).then(resolve, reject);
      };
      socket.onerror = () => reject(new Error("the server cannot be reached"));
      socket.onmessage = ({ data }) => this.take(decode(data), performance.now());
      socket.onclose = ({ code, reason }) => this.closed(socket, code, reason);
    });
  }

  take(message, now) {
    const request = this.requests.get(message.id);
    if (request && message.id !== null) {
      this.requests.delete(message.id);
      if (message.type === "error") request.reject(new Refusal(message));
      else request.resolve({ ...message, sent: request.sent, answered: now });
    } else this.handlers[message.type]?.(message, now);
  }

  send(message) {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(encode(message));
  }

  /** Sends a request; resolves to its reply. `sending` is told its id first. */
  request(type, fields = {}, sending = () => {}) {
    const id = ++this.id;
    return new Promise((resolve, reject) => {
      this.requests.set(id, { resolve, reject, sent: performance.now() });
      sending(id);
      this.send({ type, id, ...fields });
    });
  }

  async ping() {
    const { sent, answered, time } = await this.request("ping");
    this.clock.add(sent, answered, time);
  }

  async start(fields) {
    const started = await this.request("start", { protocol: PROTOCOL, token: this.token, ...fields });
    this.session = started.session;
    return started;
  }

  async stop() {
    this.over = true;
    await this.request("stop");
  }

  closed(socket, code, reason) {
    if (this.socket !== socket) return;
    clearInterval(this.timer);
    this.socket = null;
    for (const { reject } of this.requests.values()) reject(new Error("connection closed"));
    this.requests.clear();
    // 1005 and 1006: without a word; anything else the server has said on purpose.
    if (this.over || !this.session || ![1005, 1006, 1012].includes(code)) {
      this.handlers.closed?.(code, reason);
    } else this.comeBack();
  }

  /** Attaches to the session again, if it can be done before the server gives it up. */
  async comeBack() {
    this.handlers.lost?.();
    for (const wait of RETRIES) {
      await new Promise((resolve) => setTimeout(resolve, wait));
      try {
        await this.open();
        const started = await this.request("attach", {
          protocol: PROTOCOL,
          session: this.session,
          token: this.token,
        });
        this.handlers.back?.(started);
        return;
      } catch (error) {
        if (error instanceof Refusal && error.code === "unknown_session") break;
      }
    }
    this.handlers.closed?.(1006, "the session is gone");
  }
}
